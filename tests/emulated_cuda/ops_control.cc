// Branches and ends. Lanes that part run on by the lowest place first, which joins them again where
// their ways meet.
#include "decode.h"
#include "lanes.h"

namespace nibble::emulated {
namespace {

void branch(Warp& w, const Inst& in) {
  if (w.mask == w.active) {
    w.pc = in.target;
    if (!w.others.empty()) w.event = Event::kRegroup;
    return;
  }
  w.others.push_back({in.target, w.mask});
  w.active &= ~w.mask;
  w.event = Event::kRegroup;
}
void leave(Warp& w, const Inst&) { end_lanes(w, w.mask); }
void trap(Warp& w, const Inst&) { throw Fault("trap", w.first_lane()); }

}  // namespace

bool decode_control(Decoder& d, Inst& in) {
  const std::string& op = d.base();
  if (op == "bra") {
    in.target = d.target(d.operand(0));
    in.run = branch;
  } else if (op == "ret" || op == "exit") {
    in.run = leave;
  } else if (op == "trap") {
    in.run = trap;
  } else if (op == "nanosleep") {
    in.run = [](Warp& w, const Inst&) { w.event = Event::kYield; };
  } else {
    return false;
  }
  return true;
}

}  // namespace nibble::emulated
