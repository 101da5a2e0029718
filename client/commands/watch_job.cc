#include "client/commands/watch_job.h"

#include <signal.h>

#include <iostream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/exit_codes.h"
#include "client/render/progress.h"

namespace cadre::client {
namespace {

// Between progress lines where there is no terminal.
constexpr absl::Duration kLinePause = absl::Seconds(2);

// Turns Ctrl-C into JobClient::Interrupt while it lives.
class InterruptGuard {
 public:
  explicit InterruptGuard(JobClient* client) {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGUSR2);  // wakes the thread at the end
    pthread_sigmask(SIG_BLOCK, &set_, &old_);
    thread_ = std::thread([this, client] {
      int signal = 0;
      sigwait(&set_, &signal);
      if (signal == SIGINT) client->Interrupt();
    });
  }
  ~InterruptGuard() {
    pthread_kill(thread_.native_handle(), SIGUSR2);
    thread_.join();
    pthread_sigmask(SIG_SETMASK, &old_, nullptr);
  }

 private:
  sigset_t set_, old_;
  std::thread thread_;
};

class Display {
 public:
  Display(const Context& context, bool json_items)
      : context_(context),
        json_items_(json_items),
        out_(context.json ? std::cerr : std::cout) {
    if (context.json) terminal_.width = 0;
    if (!context.json) terminal_ = context.terminal;
  }

  void Show(const v1::WatchJobResponse& item) {
    if (json_items_) {
      if (!item.has_heartbeat()) context_.PrintJson(item);
      return;
    }
    if (context_.quiet) return;
    state_ = item.state();
    if (item.has_snapshot()) {
      progress_ = item.snapshot().progress();
      reason_ = item.snapshot().queue_reason();
      state_ = item.snapshot().state();
    } else if (item.has_progress()) {
      progress_ = item.progress();
    } else if (item.has_event()) {
      Event(item.event());
    }
    const std::string line =
        ProgressLine(state_, progress_, reason_, terminal_);
    if (terminal_.is_tty) {
      out_ << "\r\x1b[K" << line << std::flush;
      live_ = true;
    } else if (item.has_progress() && progress_.step() != shown_step_ &&
               absl::Now() - shown_ >= kLinePause) {
      out_ << line << std::endl;
      shown_ = absl::Now();
      shown_step_ = progress_.step();
    }
  }

  void Note(absl::string_view text) {
    EndLine();
    context_.Note(absl::StrCat(text, "\n"));
  }

  void EndLine() {
    if (live_) out_ << "\n" << std::flush;
    live_ = false;
  }

 private:
  void Event(const v1::Event& event) {
    if (event.type() == "QUEUE_REASON_CHANGED") {
      reason_.set_message(event.message());
      if (auto it = event.data().find("code"); it != event.data().end()) {
        reason_.set_code(it->second);
      }
    }
    if (live_) out_ << "\r\x1b[K";
    live_ = false;
    out_ << EventLine(event, terminal_) << std::endl;
  }

  const Context& context_;
  const bool json_items_;
  std::ostream& out_;
  Terminal terminal_;
  v1::JobState state_ = v1::JOB_STATE_UNSPECIFIED;
  v1::Progress progress_;
  v1::QueueReason reason_;
  bool live_ = false;
  absl::Time shown_ = absl::InfinitePast();
  int64_t shown_step_ = -1;
};

}  // namespace

int WatchJob(const Context& context, const WatchJobOptions& options,
             v1::Job* last) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  Display display(context, options.json_items);
  absl::Status status;
  {
    InterruptGuard guard(client->get());
    status = (*client)->Watch({
        .job = options.job,
        .after_sequence = options.after_sequence,
        .on_item = [&](const v1::WatchJobResponse& i) { display.Show(i); },
        .on_reconnect =
            [&](const absl::Status& lost) {
              display.Note(absl::StrCat("lost the coordinator (",
                                        lost.message(), "); reconnecting"));
            },
    });
  }
  display.EndLine();
  if (absl::IsCancelled(status)) {
    context.Note(absl::StrCat("detached; the job goes on. cadre watch ",
                              JobId(options.job), " follows it again\n"));
    return kInterrupted;
  }
  if (!status.ok()) return context.Fail(status);
  auto job = (*client)->Get(options.job, v1::JOB_VIEW_FULL);
  if (!job.ok()) return context.Fail(job.status());
  *last = *std::move(job);
  switch (last->state()) {
    case v1::JOB_STATE_SUCCEEDED:
      return kOk;
    case v1::JOB_STATE_CANCELLED:
      return kJobCancelled;
    default:
      return kJobFailed;
  }
}

std::string Summary(const v1::Job& job, const Terminal& terminal) {
  std::string out =
      absl::StrCat(JobId(job.name()), " ", StateName(job.state()));
  if (job.has_start_time() && job.has_end_time()) {
    absl::StrAppend(&out, " after ",
                    FormatSeconds(static_cast<double>(
                        job.end_time().seconds() - job.start_time().seconds())),
                    " (", job.attempt_epoch(),
                    job.attempt_epoch() == 1 ? " attempt)" : " attempts)");
  }
  out += "\n";
  const v1::Progress& p = job.progress();
  if (p.step() > 0) {
    absl::StrAppendFormat(&out, "  steps   %d of %d, %s tokens\n", p.step(),
                          p.total_steps(),
                          FormatCount(static_cast<double>(p.tokens())));
    absl::StrAppendFormat(&out, "  loss    first %.4f, last %.4f\n",
                          p.first_loss(), p.loss());
    if (p.eval_loss() > 0) {
      absl::StrAppendFormat(&out, "  eval    %.4f\n", p.eval_loss());
    }
  }
  for (const auto& artifact : job.artifacts()) {
    const std::string kind =
        artifact.name().substr(artifact.name().rfind('/') + 1);
    absl::StrAppendFormat(&out, "  %-7s %s\n", kind, artifact.storage_path());
  }
  if (job.state() == v1::JOB_STATE_FAILED) {
    const v1::Failure& f = job.failure();
    absl::StrAppend(&out, terminal.Style("31", "  failed  "),
                    v1::FailureCause_Name(f.cause()).substr(14), ": ",
                    f.status().message(), "\n");
    if (!f.evidence().empty()) {
      absl::StrAppend(&out, "  detail  ", f.evidence(), "\n");
    }
  }
  return out;
}

}  // namespace cadre::client
