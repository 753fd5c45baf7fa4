// The umbrella: open a container, read an expert, multiply with it, tokenize.
#pragma once

// The streaming engine (engine/), the models (model/) and conversion (convert/) are headers of their
// own: a kernel study or a forward pass of one's own needs none of them.
#include "waste/core/error.hpp"
#include "waste/core/half.hpp"
#include "waste/core/matrix_view.hpp"
#include "waste/core/parallel.hpp"
#include "waste/io/container.hpp"
#include "waste/io/crc32.hpp"
#include "waste/nn/matvec.hpp"
#include "waste/quant/reference.hpp"
#include "waste/text/tokenizer.hpp"
#include "waste/version.hpp"
