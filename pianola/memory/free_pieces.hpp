#pragma once
#include <pianola/memory/piece.hpp>

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace pianola::memory {

/// Memory that no block lies in: neighbours are one piece. All is done in log n.
class FreePieces {
 public:
  /// The smallest that holds so much, the one of the lowest address among equals; nullopt: none does.
  std::optional<Piece> take_smallest(std::uint64_t bytes) {
    const auto found = by_size_.lower_bound({bytes, 0});
    if (found == by_size_.end()) return std::nullopt;
    const Piece piece = {.address = found->second, .bytes = found->first};
    erase(by_address_.find(piece.address));
    return piece;
  }

  /// The one that ends there; nullopt: none does. Nothing is free behind that address.
  std::optional<Piece> take_before(std::uint64_t end) {
    if (by_address_.empty()) return std::nullopt;
    const auto last = std::prev(by_address_.end());
    if (last->first + last->second != end) return std::nullopt;
    const Piece piece = {.address = last->first, .bytes = last->second};
    erase(last);
    return piece;
  }

  /// Takes these bytes out; false: not all of them are free.
  bool take_at(Piece wanted) {
    auto found = by_address_.upper_bound(wanted.address);
    if (found == by_address_.begin()) return false;
    --found;
    const Piece piece = {.address = found->first, .bytes = found->second};
    const std::uint64_t before = wanted.address - piece.address;
    if (piece.bytes < before + wanted.bytes) return false;
    erase(found);
    if (before != 0) give_back({.address = piece.address, .bytes = before});
    const std::uint64_t behind = piece.bytes - before - wanted.bytes;
    if (behind != 0) give_back({.address = wanted.address + wanted.bytes, .bytes = behind});
    return true;
  }

  /// By address.
  [[nodiscard]] std::vector<Piece> all() const {
    std::vector<Piece> pieces;
    for (const auto& [address, bytes] : by_address_) pieces.push_back({.address = address, .bytes = bytes});
    return pieces;
  }

  void give_back(Piece piece) {
    auto after = by_address_.lower_bound(piece.address);
    if (after != by_address_.end() && after->first == piece.address + piece.bytes) {
      piece.bytes += after->second;
      after = erase(after);
    }
    if (after != by_address_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second == piece.address) {
        piece = {.address = before->first, .bytes = before->second + piece.bytes};
        erase(before);
      }
    }
    by_address_.emplace(piece.address, piece.bytes);
    by_size_.emplace(piece.bytes, piece.address);
  }

 private:
  using ByAddress = std::map<std::uint64_t, std::uint64_t>;

  ByAddress::iterator erase(ByAddress::iterator piece) {
    by_size_.erase({piece->second, piece->first});
    return by_address_.erase(piece);
  }

  ByAddress by_address_;  // the bytes of each
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;
};

}  // namespace pianola::memory
