#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

// Note [Gloo's names]
// torch's wheels hold Gloo, and the header of its process group, which includes Gloo's; but those they do not hold. Of Gloo's classes
// that header has pointers only, so that it is content with their names. Nothing of what is declared here is defined, called or
// laid out by Pianola.

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace rendezvous {

class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};

}  // namespace rendezvous

namespace transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};

}  // namespace transport
}  // namespace gloo
