"""Curves as a picture: lines of one measure over steps, for the pages that show them."""

from html import escape

LEFT, TOP, WIDTH, HEIGHT, RIGHT, BOTTOM = 60, 40, 560, 240, 120, 40


def curve_picture(title, curves, steps, colours):
    """SVG. `curves`: name -> values at even distances, of `steps` in all. Dark and light pages both show it on white."""
    highest = max(max(values) for values in curves.values())
    lines = [f'<text x="12" y="22" font-size="13">{escape(title)}</text>']
    for k in range(5):
        y = TOP + HEIGHT * k / 4
        lines.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#d8dade"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{highest * (4 - k) / 4:.2f}</text>')
        lines.append(f'<text x="{LEFT + WIDTH * k / 4:.1f}" y="{TOP + HEIGHT + 20}" text-anchor="middle">{steps * k // 4}</text>')
    for i, ((name, values), colour) in enumerate(zip(curves.items(), colours)):
        points = [f"{LEFT + WIDTH * (n + 1) / len(values):.1f},{TOP + HEIGHT * (1 - value / highest):.1f}" for n, value in enumerate(values)]
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{" ".join(points)}"/>')
        y = TOP + 16 + 18 * i
        lines.append(f'<line x1="{LEFT + WIDTH + 8}" x2="{LEFT + WIDTH + 26}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="3"/>')
        lines.append(f'<text x="{LEFT + WIDTH + 32}" y="{y}">{escape(name)}</text>')
    width, height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
                      'font-family="sans-serif" font-size="12" fill="#1f2328">',
                      '<rect width="100%" height="100%" rx="6" fill="#ffffff"/>', *lines, "</svg>"]) + "\n"
