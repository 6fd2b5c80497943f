"""One line for the trainers that people use: `transformers`, `lightning` and `accelerate`, each a module of its own, which wants the
package of that name, and `megatron`, which wants none. `import pianola` imports none of them."""
