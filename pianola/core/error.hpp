#pragma once
#include <pianola/core/export.hpp>

#include <stdexcept>
#include <string>

namespace pianola {

/// The three things every message of Pianola says.
struct Diagnosis {
  std::string what;        ///< What happened, with the offending value and the accepted ones.
  std::string where = {};  ///< Operation, module path, source line; empty where there is no place to name.
  std::string fix = {};    ///< What to do about it; empty where nothing can be advised.
  std::string rule = {};   ///< Id of the hazard rule that it is a case of ("PG101"), see hazard_rule.hpp; may be empty.
};

/// Base of all errors that Pianola throws. `what()` is the whole text, on one to three lines:
///
///     aten::item read a CUDA tensor on the host during capture [PG101]
///       where: operation 41, train_step at loss.cpp:88
///       fix:   keep the value on the device, or leave this part out of the capture
class PIANOLA_API Error : public std::runtime_error {
 public:
  explicit Error(Diagnosis diagnosis);
  ~Error() override;
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;

  [[nodiscard]] const Diagnosis& diagnosis() const noexcept { return diagnosis_; }

 private:
  Diagnosis diagnosis_;
};

/// The caller broke a documented rule (argument out of range, call in the wrong state).
class PIANOLA_API UsageError : public Error {
 public:
  using Error::Error;
  ~UsageError() override;
};

/// A capture failed. Nothing is kept: stream, memory, random generators and modes are as before.
class PIANOLA_API CaptureError : public Error {
 public:
  using Error::Error;
  ~CaptureError() override;
};

/// A replay was refused or could not be launched. Where it was refused, nothing was launched.
class PIANOLA_API ReplayError : public Error {
 public:
  using Error::Error;
  ~ReplayError() override;
};

/// The inputs or modes of a call differ from those that were captured.
class PIANOLA_API GuardError : public Error {
 public:
  using Error::Error;
  ~GuardError() override;
};

/// A pipeline schedule is malformed, or was not followed.
class PIANOLA_API ScheduleError : public Error {
 public:
  using Error::Error;
  ~ScheduleError() override;
};

/// Options or a configuration contradict each other.
class PIANOLA_API ConfigError : public Error {
 public:
  using Error::Error;
  ~ConfigError() override;
};

/// The request is sound but this build, driver or backend cannot serve it.
class PIANOLA_API UnsupportedError : public Error {
 public:
  using Error::Error;
  ~UnsupportedError() override;
};

/// A replay communicated with other ranks, and one of them did something else, or has ended. Unlike ReplayError: the replay
/// has begun, and nothing is tried again.
class PIANOLA_API CommunicationError : public Error {
 public:
  using Error::Error;
  ~CommunicationError() override;
};

/// No such device, no driver, or a CUDA call failed outside a capture.
class PIANOLA_API DeviceError : public Error {
 public:
  using Error::Error;
  ~DeviceError() override;
};

}  // namespace pianola
