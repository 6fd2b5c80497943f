#pragma once
#include <gloo/context.h>  // see Note [Gloo's names]
