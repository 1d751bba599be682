// The tile library that the generated attention kernels are written in.
#pragma once

#include "flashrt/block.h"
#include "flashrt/constants.h"
#include "flashrt/exchange.h"
#include "flashrt/gradient.h"
#include "flashrt/loader.h"
#include "flashrt/scores.h"
#include "flashrt/softmax.h"
#include "flashrt/tile.h"
