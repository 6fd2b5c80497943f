"""Makes docs/reference/python_api.md from the docstrings of the Python package and of its stub.

    python_api_doc.py            write the page
    python_api_doc.py --check    fail if the page is not what the docstrings make

It reads the sources, so that nothing has to be built.
"""

import ast
import re
import sys

from generated_pages import ROOT, write_or_check

PACKAGE = ROOT / "python/pianola"
PAGE = ROOT / "docs/reference/python_api.md"

HEAD = """# Python API

`tools/python_api_doc.py` makes this page from the docstrings, which `help(pianola.Graph)` shows as well. [Options](options.md) compares
the options of everything that captures.
"""

# Title -> public names, in their order. "_C." marks what a function or method returns.
SECTIONS = {
    "Functions and modules that capture themselves": ["graphed", "GraphedFunction", "eager", "EagerPart", "_C.GraphedInfo", "_C.SignatureInfo"],
    "Layers of a model": ["graph_layers", "GraphedLayers", "_C.LayersInfo", "_C.LayerInfo", "apply_config"],
    "Callables": ["make_graphed_callables", "GraphedForward", "_C.CallableInfo", "GradPolicy", "OutputPolicy", "Schedule"],
    "The whole iteration": ["FullIteration", "_C.FullIterationInfo", "_C.IterationInfo", "StaticInputs", "Buckets"],
    "Graphs of your own": ["Graph", "CUDAGraph", "graph", "GraphPool", "GraphPoolFamily", "suspend_all", "resume_all", "graph_pool_handle", "_C.GraphInfo", "compat"],
    "Branches": ["ParallelOptions", "_C.BranchInfo"],
    "Audit, verify, profile, memory": ["audit", "_C.AuditReport", "_C.Finding", "verify", "_C.VerifyReport", "_C.TensorDifference", "profile",
                               "decide", "_C.Profile", "_C.ScopePrediction", "try_scopes", "TriedScopes", "Trial",
                               "predict_memory", "_C.MemoryForecast", "_C.MemoryUser", "predict_buckets", "_C.BucketForecast", "predict_scopes", "_C.ScopeForecast", "_C.PredictedScope", "_C.LanesForecast", "memory", "_C.ProcessMemory", "_C.WatchedMemory", "memory_of_graphs",
                               "_C.GraphMemory", "_C.PoolMemory", "_C.ExecutableMemory", "watch_memory"],
    "Training": ["optim.SGD", "optim.Adam", "optim.AdamW", "optim.LearningRate", "optim.LearningRateSchedule",
                 "optim.DeviceLearningRateSchedule", "optim.ExponentialMovingAverage", "GradScaler", "clip_grad_norm_",
                 "clip_grad_value_", "clip_gradients_norm_", "FiniteWatch", "RngTracker", "Checkpoint"],
    "Products in 8 bits": ["fp8.convert", "fp8.autocast", "fp8.Recipe", "fp8.Float8Linear", "fp8.Scales", "fp8.scales_of"],
    "Devices and streams": ["default_device", "current_stream", "stream", "Stream", "is_current_stream_capturing"],
    "Configurations": ["CudaGraphConfig", "check_config", "check_internals", "require_valid", "load_config", "with_environment", "config_rules"],
    "Errors": ["Error", "UsageError", "CaptureError", "OutOfMemoryError", "ReplayError", "GuardError", "ScheduleError",
               "NonFiniteError", "ConfigError", "UnsupportedError", "CommunicationError", "DeviceError"],
}
FIELDS_ELSEWHERE = {"CudaGraphConfig": "Its fields are the keys of [configuration](configuration.md#keys)."}
Definition = ast.ClassDef | ast.FunctionDef


def definitions(path):
    """{name: definition}; of overloads the last, which is the function itself."""
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, Definition)}


class Package:
    """Where its public names are defined."""

    def __init__(self, folder=PACKAGE):
        self.stub = definitions(folder / "_C.pyi")
        self.modules = {file.stem: definitions(file) for file in folder.glob("[a-z]*.py")}
        self.private = {name: found for file in sorted(folder.glob("_*.py")) for name, found in definitions(file).items()}
        self.found, self.public = {}, []
        for node in ast.parse((folder / "__init__.py").read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                place = folder / node.module.replace(".", "/")
                files = sorted(place.glob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
                there = {name: found for file in files for name, found in definitions(file).items()}
                self.found |= {alias.name: there.get(alias.name) or self.stub.get(alias.name) for alias in node.names}
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
                self.found[node.targets[0].id] = self.stub.get(node.value.attr)
            elif isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
                self.public = ast.literal_eval(node.value)

    def __getitem__(self, name):
        module, _, last = name.rpartition(".")
        found = {"_C": self.stub, "": self.found, **self.modules}[module].get(last)
        found = found or (self.stub.get(last) if module == "optim" else None)
        if found is None:
            raise SystemExit(f"python_api_doc.py: where is '{name}'?")
        return found

    def members(self, kind):
        """Of a class and, where it extends a class of the stub or of the package, of that."""
        known = {f"_C.{name}": base for name, base in self.stub.items()} | self.private
        bases = [known[name] for name in map(ast.unparse, kind.bases) if name in known]
        own = list(kind.body)
        names = {node.name for node in own if isinstance(node, ast.FunctionDef)}
        for base in bases if kind not in self.stub.values() else []:
            own += [node for node in base.body if getattr(node, "name", None) not in names]
        return own


def signature(function, name):
    """Without types: names and defaults, as a call is written."""
    arguments, parts = function.args, []
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    for argument, default in zip(positional, defaults):
        if argument.arg not in ("self", "cls"):
            parts.append(argument.arg if default is None else f"{argument.arg}={ast.unparse(default)}")
    if arguments.vararg:
        parts.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        parts.append("*")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults):
        parts.append(argument.arg if default is None else f"{argument.arg}={ast.unparse(default)}")
    if arguments.kwarg:
        parts.append(f"**{arguments.kwarg.arg}")
    return f"{name}({', '.join(parts)})"


def text_of(docstring):
    """Paragraphs as they are; the entries below "Args:" and "Raises:" as a list."""
    lines, in_list = [], False
    for line in (docstring or "").splitlines():
        if re.fullmatch(r"\w[\w ,]*:", line):
            in_list = True
            lines += [f"**{line.removesuffix(':')}**", ""]
        elif in_list and (entry := re.fullmatch(r" {4}(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*): (.*)", line)):
            names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
            lines.append(f"- {names}: {entry[2]}")
        elif in_list and line.startswith("        "):
            lines.append("  " + line.strip())
        elif in_list and line.startswith("    "):
            lines.append("- " + line.strip())
        else:
            in_list = in_list and not line
            lines.append(line)
    return "\n".join(lines)


def first_paragraph(docstring):
    return " ".join((docstring or "").partition("\n\n")[0].split())


def member_lines(package, kind):
    """One entry a method or field that has a docstring."""
    lines, members = [], package.members(kind)
    for node, after in zip(members, [*members[1:], None]):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and ast.get_docstring(node):
            is_field = any(getattr(each, "id", "") == "property" for each in node.decorator_list)
            name = node.name if is_field else signature(node, node.name)
            lines.append(f"- `{name}`: {first_paragraph(ast.get_docstring(node))}")
        elif isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            lines.append(f"- `{node.target.id}`: {first_paragraph(after.value.value)}")
    return lines


def entry(package, name):
    found, short = package[name], name.removeprefix("_C.")
    if isinstance(found, ast.FunctionDef):
        head, members = signature(found, short), []
    else:
        make = next((node for node in package.members(found) if getattr(node, "name", "") == "__init__"), None)
        head, members = (signature(make, short) if make and "_C." not in name else short), member_lines(package, found)
    if short in FIELDS_ELSEWHERE:
        head, members = f"{short}(**fields)", [FIELDS_ELSEWHERE[short]]
    parts = [f"### {short}", f"`{head}`", text_of(ast.get_docstring(found)).strip()]
    return "\n\n".join(part for part in [*parts, "\n".join(members)] if part) + "\n"


def page():
    package = Package()
    listed = {name.partition(".")[0] for names in SECTIONS.values() for name in names}
    if missing := sorted(set(package.public) - listed):
        raise SystemExit(f"python_api_doc.py: no section has {', '.join(missing)}")
    parts = [HEAD]
    for title, names in SECTIONS.items():
        parts += [f"## {title}\n", *(entry(package, name) for name in names)]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, lambda: {PAGE: page()}))
