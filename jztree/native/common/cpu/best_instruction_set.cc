// A program for the build: prints the best instruction set of this machine.

#include <cstdio>

#include "instruction_set.h"

int main() { std::puts(jztree::best_instruction_set()); }
