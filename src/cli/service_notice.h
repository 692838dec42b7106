// Tells systemd (Type=notify) how far the service is. Without systemd it does nothing.
#pragma once

#include <string>

namespace nibble::cli {

// "READY=1", "STOPPING=1", "STATUS=loading": sent to the socket that $NOTIFY_SOCKET names. False:
// there is none, or it does not listen.
bool notify_service(const std::string& state);

}  // namespace nibble::cli
