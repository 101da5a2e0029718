#include "base/text/record.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cadre {
namespace {

// Values in one record: a line of 16 MiB could hold eight million.
constexpr int64_t kMaxValues = 1'000'000;

using Code = DataErrorCode;

class RecordParser {
 public:
  RecordParser(const std::string& file, int64_t line)
      : file_(file), line_(line) {}

  ParsedRecord Run(absl::string_view text, DataFormat format) {
    JsonResult json = ParseJsonDetailed(text, kMaxValues);
    if (!json.ok) {
      const JsonError& error = json.error;
      Error(error.kind == JsonError::Kind::kUtf8 ? Code::kUtf8 : Code::kJson,
            error.offset,
            error.kind == JsonError::Kind::kDuplicateKey
                ? absl::StrCat(error.message, "; keep one of them")
                : absl::StrCat("not valid JSON: ", error.message,
                               "; each line must be one JSON object"));
      return std::move(out_);
    }
    if (!json.value.is_object()) {
      Error(Code::kJson, json.value.offset(),
            absl::StrCat("a record is a JSON object, this is ",
                         json.value.TypeName()));
      return std::move(out_);
    }
    const std::optional<DataFormat> found = FormatOf(json.value);
    if (!found.has_value()) return std::move(out_);
    if (format != DataFormat::kAuto && *found != format) {
      Error(Code::kMixedFormat, 0,
            absl::StrCat("this record is ", DataFormatName(*found),
                         ", but the data set is ", DataFormatName(format),
                         "; keep one format in all files"));
      return std::move(out_);
    }
    record_.format = *found;
    switch (*found) {
      case DataFormat::kChat:
        Chat(json.value);
        break;
      case DataFormat::kPromptCompletion:
        PromptCompletion(json.value);
        break;
      default:
        Text(json.value);
    }
    if (out_.errors.empty()) out_.record = std::move(record_);
    return std::move(out_);
  }

 private:
  void Error(Code code, int64_t offset, std::string message) {
    out_.errors.push_back({file_, line_, offset + 1, code, std::move(message)});
  }
  void Warn(Code code, int64_t offset, std::string message) {
    out_.warnings.push_back(
        {file_, line_, offset + 1, code, std::move(message)});
  }

  std::optional<DataFormat> FormatOf(const Json& object) {
    const bool chat = object.Find("messages") != nullptr;
    const bool completion = object.Find("completion") != nullptr;
    const bool prompt = object.Find("prompt") != nullptr;
    const bool text = object.Find("text") != nullptr;
    if (int{chat} + int{prompt || completion} + int{text} > 1) {
      Error(Code::kKeys, 0,
            "the keys of more than one format; a record has either "
            "`messages`, or `prompt` and `completion`, or `text`");
      return std::nullopt;
    }
    if (chat) return DataFormat::kChat;
    if (text) return DataFormat::kText;
    if (prompt && completion) return DataFormat::kPromptCompletion;
    if (prompt || completion) {
      Error(Code::kKeys, 0,
            absl::StrCat("`", prompt ? "completion" : "prompt",
                         "` is missing beside `",
                         prompt ? "prompt" : "completion", "`"));
      return std::nullopt;
    }
    Error(Code::kKeys, 0,
          "no format's keys are there; a record has `messages`, or `prompt` "
          "and `completion`, or `text`");
    return std::nullopt;
  }

  void WarnUnknownKeys(const Json& object,
                       std::initializer_list<absl::string_view> known,
                       absl::string_view what) {
    for (const Json::Member& member : object.members()) {
      if (std::find(known.begin(), known.end(), member.key) != known.end()) {
        continue;
      }
      Warn(Code::kKeys, member.key_offset,
           absl::StrCat("unknown key `", member.key, "` of ", what,
                        " is ignored unless the chat template reads it"));
    }
  }

  // The string of that key; nullopt after an error.
  std::optional<std::string> RequiredString(const Json& object,
                                            absl::string_view key,
                                            bool may_be_empty) {
    const Json* value = object.Find(key);
    if (value == nullptr) {
      Error(Code::kKeys, object.offset(),
            absl::StrCat("`", key, "` is missing"));
      return std::nullopt;
    }
    if (!value->is_string()) {
      Error(Code::kType, value->offset(),
            absl::StrCat("`", key, "` must be a string, this is ",
                         value->TypeName()));
      return std::nullopt;
    }
    if (value->string_value().empty() && !may_be_empty) {
      Error(Code::kEmpty, value->offset(),
            absl::StrCat("`", key, "` is empty; remove the record"));
      return std::nullopt;
    }
    return value->string_value();
  }

  void Text(const Json& object) {
    WarnUnknownKeys(object, {"text"}, "a text record");
    if (auto text = RequiredString(object, "text", false)) {
      record_.text = *std::move(text);
    }
  }

  void PromptCompletion(const Json& object) {
    WarnUnknownKeys(object, {"prompt", "completion"},
                    "a prompt_completion record");
    if (auto prompt = RequiredString(object, "prompt", true)) {
      record_.prompt = *std::move(prompt);
    }
    if (auto completion = RequiredString(object, "completion", false)) {
      record_.completion = *std::move(completion);
    }
  }

  void Chat(const Json& object) {
    WarnUnknownKeys(object, {"messages", "tools"}, "a chat record");
    if (const Json* tools = object.Find("tools");
        tools != nullptr && !tools->is_null()) {
      if (tools->is_array()) {
        if (!tools->items().empty()) record_.tools = *tools;
      } else {
        Error(Code::kType, tools->offset(),
              absl::StrCat("`tools` must be an array, this is ",
                           tools->TypeName()));
      }
    }
    const Json& messages = *object.Find("messages");
    if (!messages.is_array()) {
      return Error(Code::kType, messages.offset(),
                   absl::StrCat("`messages` must be an array, this is ",
                                messages.TypeName()));
    }
    if (messages.items().empty()) {
      return Error(Code::kEmpty, messages.offset(),
                   "`messages` is empty; remove the record");
    }
    bool any_target = false;
    bool any_assistant = false;
    std::string previous;
    for (const Json& message : messages.items()) {
      const std::string role = Message(message, previous);
      if (role.empty()) return;  // what follows would be noise
      any_assistant = any_assistant || role == "assistant";
      any_target = any_target || record_.trained.back();
      previous = role;
    }
    if (out_.errors.empty() && !any_target) {
      Error(Code::kNoTarget, messages.offset(),
            any_assistant
                ? "every message of the assistant has weight 0, so nothing "
                  "would be learnt; give one weight 1 or remove the record"
                : "no message of the assistant, so nothing would be learnt; "
                  "add one or remove the record");
    }
  }

  // Checks one message and appends it; returns its role, "" after an error
  // that makes the order meaningless.
  std::string Message(const Json& message, const std::string& previous) {
    if (!message.is_object()) {
      Error(
          Code::kType, message.offset(),
          absl::StrCat("a message is an object, this is ", message.TypeName()));
      return "";
    }
    WarnUnknownKeys(message,
                    {"role", "content", "weight", "tool_calls", "tool_call_id",
                     "name", "reasoning_content"},
                    "a message");
    const std::optional<std::string> role =
        RequiredString(message, "role", false);
    if (!role.has_value()) return "";
    if (!CheckOrder(message, *role, previous)) return "";
    CheckContent(message, *role);
    record_.trained.push_back(CheckWeight(message, *role) &&
                              *role == "assistant");
    Json copy = message;
    std::vector<Json::Member>& members = copy.mutable_members();
    members.erase(std::remove_if(members.begin(), members.end(),
                                 [](const Json::Member& member) {
                                   return member.key == "weight";
                                 }),
                  members.end());
    record_.messages.push_back(std::move(copy));
    return *role;
  }

  bool CheckOrder(const Json& message, const std::string& role,
                  const std::string& previous) {
    const Json& where = *message.Find("role");
    const auto fail = [&](std::string why) {
      Error(Code::kRoleOrder, where.offset(), std::move(why));
      return false;
    };
    if (role == "system") {
      if (!previous.empty()) {
        return fail("`system` may only be the first message");
      }
    } else if (role == "user") {
      if (previous == "user") {
        return fail(
            "two `user` messages in a row; join them or put the assistant's "
            "reply between");
      }
      if (previous == "tool") {
        return fail("`user` behind `tool`; the assistant replies first");
      }
    } else if (role == "assistant") {
      if (previous == "assistant") {
        return fail("two `assistant` messages in a row; join them");
      }
      if (previous.empty() || previous == "system") {
        return fail("`assistant` must follow `user` or `tool`");
      }
    } else if (role == "tool") {
      if (previous != "assistant" && previous != "tool") {
        return fail("`tool` must follow `assistant` or another `tool`");
      }
    } else {
      return fail(absl::StrCat(
          "unknown role `", role,
          "`; roles are `system`, `user`, `assistant` and `tool`"));
    }
    return true;
  }

  void CheckContent(const Json& message, const std::string& role) {
    const Json* calls = message.Find("tool_calls");
    const bool has_calls = calls != nullptr && !calls->is_null();
    if (has_calls) {
      if (role != "assistant") {
        Error(Code::kKeys, calls->offset(),
              absl::StrCat("`tool_calls` in a message of `", role,
                           "`; only the assistant calls tools"));
      } else if (!calls->is_array()) {
        Error(Code::kType, calls->offset(),
              absl::StrCat("`tool_calls` must be an array, this is ",
                           calls->TypeName()));
      } else {
        CheckToolCalls(*calls);
      }
    }
    const bool calls_tools = has_calls && !calls->items().empty();
    const Json* content = message.Find("content");
    if (content == nullptr || content->is_null()) {
      if (!calls_tools) {
        Error(content == nullptr ? Code::kKeys : Code::kType,
              content == nullptr ? message.offset() : content->offset(),
              content == nullptr
                  ? "`content` is missing"
                  : "`content` is null in a message without `tool_calls`");
      }
      return;
    }
    if (content->is_array()) return CheckParts(*content);
    if (!content->is_string()) {
      Error(Code::kType, content->offset(),
            absl::StrCat("`content` must be a string, this is ",
                         content->TypeName()));
    } else if (content->string_value().empty() && role == "assistant" &&
               !calls_tools) {
      Error(Code::kEmpty, content->offset(),
            "the assistant's `content` is empty; remove the message");
    }
  }

  void CheckToolCalls(const Json& calls) {
    for (const Json& call : calls.items()) {
      const Json* function = call.Find("function");
      const Json* name =
          function != nullptr ? function->Find("name") : call.Find("name");
      if (name == nullptr || !name->is_string()) {
        Error(Code::kType, call.offset(),
              "a tool call needs `function` with a string `name`");
      }
    }
  }

  // "content": [{"type": "text", "text": "..."}, ...]
  void CheckParts(const Json& parts) {
    for (const Json& part : parts.items()) {
      const Json* type = part.Find("type");
      const Json* text = part.Find("text");
      if (type == nullptr || type->string_value() != "text" ||
          text == nullptr || !text->is_string()) {
        Error(Code::kType, part.offset(),
              "a part of `content` must be {\"type\": \"text\", \"text\": "
              "...}; only text can be trained");
        return;
      }
    }
    if (parts.items().empty()) {
      Error(Code::kEmpty, parts.offset(), "`content` is empty");
    }
  }

  // True for weight 1, which is also the default.
  bool CheckWeight(const Json& message, const std::string& role) {
    const Json* weight = message.Find("weight");
    if (weight == nullptr || weight->is_null()) return true;
    if ((weight->is_int() || weight->is_float()) &&
        (weight->number_value() == 0 || weight->number_value() == 1)) {
      if (role != "assistant" && weight->number_value() == 1) {
        Warn(Code::kKeys, weight->offset(),
             absl::StrCat("weight 1 on a message of `", role,
                          "` has no effect"));
      }
      return weight->number_value() == 1;
    }
    Error(Code::kType, weight->offset(), "`weight` must be 0 or 1");
    return false;
  }

  const std::string& file_;
  int64_t line_;
  Record record_;
  ParsedRecord out_;
};

}  // namespace

ParsedRecord ParseRecord(absl::string_view json, DataFormat format,
                         const std::string& file, int64_t line) {
  return RecordParser(file, line).Run(json, format);
}

}  // namespace cadre
