// Whether the GPU runs clusters of blocks.
#pragma once

namespace nibble::cuda {

// Of two. Asks the driver (cudaOccupancyMaxActiveClusters); launches nothing.
bool runs_clusters();

}  // namespace nibble::cuda
