// Comparing stored weights with the source they came from.
#pragma once

#include "waste/convert/checkpoint.hpp"
#include "waste/format/manifest.hpp"
#include "waste/format/vq_view.hpp"
#include "waste/io/trunk_file.hpp"
#include "waste/quant/vq_encode.hpp"

namespace waste::convert::detail {

/// |W - decoded|^2 and |W|^2 of one expert matrix, by 64 rows at a time.
quant::EncodeStats compare_matrix(const Checkpoint& source, LayerId layer, ExpertId expert,
                                  format::Kind kind, const VqMatrix& stored);

/// The same of a trunk tensor, by about a megabyte at a time.
quant::EncodeStats compare_tensor(const Checkpoint& source, const TrunkSource& tensor,
                                  const io::Trunk& trunk, const format::TrunkEntry& entry);

}  // namespace waste::convert::detail
