#include "worker/shard/unit_gatherer.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "kernels/elementwise/elementwise.h"
#include "worker/device/buffer.h"
#include "worker/device/side_stream.h"
#include "worker/device/transfer.h"

namespace cadre {
namespace {

// Bits on the way: any type travels as floats, slices are multiples of 64
// bytes.
absl::Span<float> AsFloats(void* data, int64_t bytes) {
  return absl::MakeSpan(static_cast<float*>(data), bytes / sizeof(float));
}

// Gathers one unit at a time on a thread of its own.
class GatherThread {
 public:
  explicit GatherThread(Communicator* group)
      : group_(group), thread_([this] { Run(); }) {}
  ~GatherThread() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Starts to gather the unit into `into`. Nothing is under way.
  void Start(const DenseUnit* unit, char* into) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      CADRE_CHECK(unit_ == nullptr) << unit->name;
      unit_ = unit;
      into_ = into;
    }
    changed_.notify_all();
  }

  // Until nothing is under way; the result of the last gather.
  absl::Status Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return unit_ == nullptr; });
    return status_;
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || unit_ != nullptr; });
      if (unit_ == nullptr) return;
      // After an error the communicator is of no use any more.
      if (status_.ok()) {
        const DenseUnit& unit = *unit_;
        char* const into = into_;
        lock.unlock();
        absl::Status status = Gather(unit, into);
        lock.lock();
        status_ = std::move(status);
      }
      unit_ = nullptr;
      changed_.notify_all();
    }
  }

  absl::Status Gather(const DenseUnit& unit, char* into) {
    for (const FlatRegion& region : unit.regions) {
      const absl::Status gathered = group_->AllGather(
          AsFloats(region.slice.raw(), region.slice.num_bytes()),
          AsFloats(into, region.num_bytes()));
      if (!gathered.ok()) {
        return Annotate(gathered, absl::StrCat("gathering ", unit.name));
      }
      into += region.num_bytes();
    }
    return absl::OkStatus();
  }

  Communicator* const group_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const DenseUnit* unit_ = nullptr;  // under way
  char* into_ = nullptr;
  absl::Status status_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

class UnitGathererImpl final : public UnitGatherer {
 public:
  UnitGathererImpl(const DenseUnits* units, const UnitGroups& groups)
      : exec_(units->exec()),
        units_(units),
        groups_(groups),
        thread_(groups.gather) {}

  absl::Status Init();

  absl::Status BeginPass(absl::Span<const UnitStep> steps) override;
  absl::Status Acquire() override;
  absl::Status Release() override;
  absl::Status ZeroGradients() override {
    return SetZero(exec_, gradients_.View(DType::kF32, {gradient_elements_}));
  }
  absl::Status ReduceGradients() override;
  std::vector<OwnedSlice> Owned() const override;
  Memory memory() const override;

 private:
  const DenseUnit& UnitOf(const UnitStep& step) const {
    return units_->units()[step.unit];
  }
  bool NeedsValues(size_t step) const {
    return step < steps_.size() && steps_[step].use != UnitUse::kGradients;
  }
  bool NeedsGradients(const UnitStep& step) const {
    return step.use != UnitUse::kValues && UnitOf(step).trained();
  }
  // Memory for the pass's neighbours; grows in the first pass of a kind only.
  absl::Status Reserve();
  // Starts the gather of the next step from `from` on that needs one.
  absl::Status StartNext(size_t from);
  void Point(const UnitStep& step, char* values, char* gradients) const;
  absl::Status ReduceUnit(const DenseUnit& unit, int index);

  const Exec exec_;
  const DenseUnits* const units_;
  const UnitGroups groups_;
  std::unique_ptr<SideStream> side_;  // of a GPU: what gathers wait for
  // Of the largest two units that are in use one behind the other: one lies at
  // the lower end, the other at the upper.
  Buffer buffer_;
  Buffer whole_, part_;  // gradients: of a unit, of a slice of a region
  Buffer gradients_;     // this rank's slices of all trained regions
  int64_t gradient_elements_ = 0;
  std::vector<int64_t> gradient_begin_;  // of each unit's first trained region

  absl::Span<const UnitStep> steps_;
  size_t next_ = 0;         // step to acquire
  bool in_use_ = false;     // step next_ - 1 is acquired
  size_t gathered_ = 0;     // step that the thread gathers or has gathered
  bool gathering_ = false;  // there is one that is not acquired yet
  bool upper_ = false;      // at which end it lies
  char* values_ = nullptr;
  GatherThread thread_;  // last: it writes into the buffers
};

absl::Status UnitGathererImpl::Init() {
  CADRE_ASSIGN_OR_RETURN(side_, SideStream::Create(exec_));
  if (side_ != nullptr) groups_.gather->OrderBehind(side_->stream());
  int64_t whole = 0, part = 0;
  for (const DenseUnit& unit : units_->units()) {
    gradient_begin_.push_back(gradient_elements_);
    int64_t elements = 0;
    for (const FlatRegion& region : unit.regions) {
      if (!region.trained) continue;
      for (const FlatRegion::Member& member : region.members) {
        const Tensor& grad = member.parameter->grad;
        if (!member.parameter->trainable || grad.dtype() == DType::kF32) {
          continue;
        }
        return absl::UnimplementedError(absl::StrCat(
            "sharding the gradient of ", member.parameter->name, ": it is ",
            grad.DebugString(), ", only f32 is reduced"));
      }
      elements += region.num_elements;
      part = std::max(part, region.slice_elements);
      gradient_elements_ += region.slice_elements;
    }
    whole = std::max(whole, elements);
  }
  constexpr int64_t kFloat = sizeof(float);
  if (gradient_elements_ == 0) return absl::OkStatus();
  CADRE_ASSIGN_OR_RETURN(
      whole_, Buffer::Create(exec_, whole * kFloat, "reduce buffer"));
  CADRE_ASSIGN_OR_RETURN(part_,
                         Buffer::Create(exec_, part * kFloat, "reduce buffer"));
  CADRE_ASSIGN_OR_RETURN(
      gradients_,
      Buffer::Create(exec_, gradient_elements_ * kFloat, "gradients"));
  return absl::OkStatus();
}

absl::Status UnitGathererImpl::BeginPass(absl::Span<const UnitStep> steps) {
  CADRE_RETURN_IF_ERROR(thread_.Wait());
  if (in_use_) Point(steps_[next_ - 1], nullptr, nullptr);
  steps_ = steps;
  next_ = 0;
  in_use_ = gathering_ = false;
  CADRE_RETURN_IF_ERROR(Reserve());
  return StartNext(0);
}

absl::Status UnitGathererImpl::Reserve() {
  int64_t before = 0, needed = 0;
  for (const UnitStep& step : steps_) {
    if (step.use == UnitUse::kGradients) continue;
    const int64_t bytes = UnitOf(step).num_bytes();
    needed = std::max(needed, before + bytes);
    before = bytes;
  }
  if (needed <= buffer_.num_bytes()) return absl::OkStatus();
  buffer_ = Buffer();
  CADRE_ASSIGN_OR_RETURN(buffer_,
                         Buffer::Create(exec_, needed, "gathered units"));
  return absl::OkStatus();
}

absl::Status UnitGathererImpl::StartNext(size_t from) {
  while (from < steps_.size() && !NeedsValues(from)) ++from;
  if (from == steps_.size()) return absl::OkStatus();
  // On a GPU the gather waits for the unit that lay at this end, and for the
  // update of the slices, but not for the unit whose use begins now.
  if (side_ != nullptr) CADRE_RETURN_IF_ERROR(side_->Follow());
  gathered_ = from;
  gathering_ = true;
  upper_ = !upper_;
  const DenseUnit& unit = UnitOf(steps_[from]);
  values_ = static_cast<char*>(buffer_.data()) +
            (upper_ ? buffer_.num_bytes() - unit.num_bytes() : 0);
  thread_.Start(&unit, values_);
  return absl::OkStatus();
}

absl::Status UnitGathererImpl::Acquire() {
  CADRE_CHECK(next_ < steps_.size() && !in_use_) << next_;
  const UnitStep& step = steps_[next_];
  char* values = nullptr;
  if (NeedsValues(next_)) {
    CADRE_CHECK(gathering_ && gathered_ == next_) << next_;
    CADRE_RETURN_IF_ERROR(thread_.Wait());
    gathering_ = false;
    values = values_;
    // The other end is free: the step before has been released.
    CADRE_RETURN_IF_ERROR(StartNext(next_ + 1));
  }
  char* gradients = nullptr;
  if (NeedsGradients(step)) {
    gradients = static_cast<char*>(whole_.data());
    int64_t elements = 0;
    for (const FlatRegion& region : UnitOf(step).regions) {
      if (region.trained) elements += region.num_elements;
    }
    CADRE_RETURN_IF_ERROR(SetZero(exec_, whole_.View(DType::kF32, {elements})));
  }
  Point(step, values, gradients);
  ++next_;
  in_use_ = true;
  return absl::OkStatus();
}

absl::Status UnitGathererImpl::Release() {
  CADRE_CHECK(in_use_);
  const UnitStep& step = steps_[next_ - 1];
  Point(step, nullptr, nullptr);
  in_use_ = false;
  if (!NeedsGradients(step)) return absl::OkStatus();
  const DenseUnit& unit = UnitOf(step);
  return Annotate(ReduceUnit(unit, step.unit),
                  absl::StrCat("summing the gradients of ", unit.name));
}

// Null pointers: the tensors keep their dims and lose their memory.
void UnitGathererImpl::Point(const UnitStep& step, char* values,
                             char* gradients) const {
  for (const FlatRegion& region : UnitOf(step).regions) {
    for (const FlatRegion::Member& member : region.members) {
      Tensor& value = member.parameter->value;
      value = Tensor(values == nullptr
                         ? nullptr
                         : values + member.begin * SizeOf(region.dtype),
                     value.dtype(), value.dims());
      Tensor& grad = member.parameter->grad;
      if (!member.parameter->trainable) continue;
      grad = Tensor(gradients == nullptr
                        ? nullptr
                        : gradients + member.begin * sizeof(float),
                    grad.dtype(), grad.dims());
    }
    if (values != nullptr) values += region.num_bytes();
    if (gradients != nullptr && region.trained) {
      gradients += region.num_elements * sizeof(float);
    }
  }
}

absl::Status UnitGathererImpl::ReduceUnit(const DenseUnit& unit, int index) {
  const float* whole = static_cast<const float*>(whole_.data());
  float* const part = static_cast<float*>(part_.data());
  float* sum = static_cast<float*>(gradients_.data()) + gradient_begin_[index];
  for (const FlatRegion& region : unit.regions) {
    if (!region.trained) continue;
    CADRE_RETURN_IF_ERROR(groups_.shard->ReduceScatterSum(
        absl::MakeConstSpan(whole, region.num_elements),
        absl::MakeSpan(part, region.slice_elements)));
    CADRE_RETURN_IF_ERROR(
        AddInPlace(exec_, Tensor(part, DType::kF32, {region.slice_elements}),
                   Tensor(sum, DType::kF32, {region.slice_elements})));
    whole += region.num_elements;
    sum += region.slice_elements;
  }
  return absl::OkStatus();
}

absl::Status UnitGathererImpl::ReduceGradients() {
  if (groups_.replica == nullptr) return absl::OkStatus();
  constexpr int64_t kPiece = int64_t{16} << 20;
  float* const data = static_cast<float*>(gradients_.data());
  for (int64_t at = 0; at < gradient_elements_; at += kPiece) {
    CADRE_RETURN_IF_ERROR(groups_.replica->AllReduceSum(
        absl::MakeSpan(data + at, std::min(kPiece, gradient_elements_ - at))));
  }
  return absl::OkStatus();
}

std::vector<OwnedSlice> UnitGathererImpl::Owned() const {
  std::vector<OwnedSlice> owned;
  const int shard = units_->sharding().shard;
  for (size_t u = 0; u < units_->units().size(); ++u) {
    float* grad = static_cast<float*>(gradients_.data()) + gradient_begin_[u];
    for (const FlatRegion& region : units_->units()[u].regions) {
      if (!region.trained) continue;
      const int64_t slice = shard * region.slice_elements;
      for (const FlatRegion::Member& member : region.members) {
        if (!member.parameter->trainable) continue;
        const int64_t n = member.parameter->value.num_elements();
        const int64_t begin = std::max(member.begin, slice);
        const int64_t end =
            std::min(member.begin + n, slice + region.slice_elements);
        if (begin >= end) continue;
        owned.push_back({.parameter = member.parameter,
                         .begin = begin - member.begin,
                         .end = end - member.begin,
                         .sharded_value =
                             FlatPart(region.slice, begin - slice, end - slice),
                         .sharded_grad = Tensor(grad + begin - slice,
                                                DType::kF32, {end - begin}),
                         .counted = groups_.counted});
      }
      grad += region.slice_elements;
    }
  }
  return owned;
}

UnitGatherer::Memory UnitGathererImpl::memory() const {
  Memory memory;
  for (const DenseUnit& unit : units_->units()) {
    for (const FlatRegion& region : unit.regions) {
      memory.slices += region.slice.num_bytes();
    }
  }
  memory.gradients = gradients_.num_bytes();
  memory.gather = buffer_.num_bytes();
  memory.reduce = whole_.num_bytes() + part_.num_bytes();
  return memory;
}

}  // namespace

absl::StatusOr<std::unique_ptr<UnitGatherer>> UnitGatherer::Create(
    const DenseUnits* units, const UnitGroups& groups) {
  CADRE_CHECK(groups.gather != nullptr && groups.shard != nullptr);
  if (groups.gather->size() != units->sharding().num_shards ||
      groups.gather->rank() != units->sharding().shard) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the model holds shard ", units->sharding().shard, " of ",
        units->sharding().num_shards, ", the communicator is rank ",
        groups.gather->rank(), " of ", groups.gather->size()));
  }
  auto gatherer = std::make_unique<UnitGathererImpl>(units, groups);
  CADRE_RETURN_IF_ERROR(gatherer->Init());
  return gatherer;
}

}  // namespace cadre
