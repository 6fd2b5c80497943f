#!/bin/sh
# Answers FindLibtorch.cmake like an interpreter that has another torch without CUDA.
printf '%s\n' /nowhere/torch 0.1.2 '' 1
