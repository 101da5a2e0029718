#include "base/config/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <sstream>

#include "absl/strings/str_cat.h"

namespace cadre::yaml {
namespace {

constexpr size_t kMaxDepth = 8;

YamlMark At(const YAML::Mark& mark) {
  return {.line = mark.line + 1,
          .column = mark.column + 1};  // yaml-cpp: from 0
}

// Builds the tree from yaml-cpp's events; the Node API of yaml-cpp hides
// aliases and duplicate keys.
class Builder final : public YAML::EventHandler {
 public:
  explicit Builder(std::vector<SyntaxError>* errors) : errors_(errors) {}

  Node TakeRoot() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Anchor(mark, anchor);
    Add({.kind = Node::Kind::kNull, .mark = At(mark)});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Error(mark, "aliases (*name) are not allowed; write the value out");
    Add({.kind = Node::Kind::kNull, .mark = At(mark)});
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag,
                YAML::anchor_t anchor, const std::string& value) override {
    Anchor(mark, anchor);
    Tag(mark, tag);
    Add({.kind = Node::Kind::kScalar,
         .mark = At(mark),
         .scalar = value,
         .quoted = tag == "!"});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag,
                       YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(Node::Kind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag,
                  YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    Open(Node::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { Close(); }

 private:
  struct Frame {
    Node node;
    Node key;
    bool has_key = false;
  };

  void Error(const YAML::Mark& mark, std::string message) {
    errors_->push_back({At(mark), std::move(message)});
  }
  void Anchor(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) {
      Error(mark, "anchors (&name) are not allowed; write the value out");
    }
  }
  void Tag(const YAML::Mark& mark, const std::string& tag) {
    // "?" is a plain scalar or collection, "!" a quoted scalar.
    if (!tag.empty() && tag != "?" && tag != "!") {
      Error(mark, absl::StrCat("tags (", tag, ") are not allowed; remove it"));
    }
  }
  void Open(Node::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    Anchor(mark, anchor);
    Tag(mark, tag);
    if (stack_.size() == kMaxDepth) {
      Error(mark, absl::StrCat("more than ", kMaxDepth, " levels of nesting"));
    }
    stack_.push_back({.node = {.kind = kind, .mark = At(mark)}});
  }
  void Close() {
    Node node = std::move(stack_.back().node);
    stack_.pop_back();
    Add(std::move(node));
  }
  void Add(Node node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = stack_.back();
    if (frame.node.kind == Node::Kind::kList) {
      frame.node.items.push_back(std::move(node));
    } else if (!frame.has_key) {
      frame.key = std::move(node);
      frame.has_key = true;
    } else {
      frame.node.entries.push_back({std::move(frame.key), std::move(node)});
      frame.has_key = false;
    }
  }

  std::vector<SyntaxError>* errors_;
  std::vector<Frame> stack_;
  Node root_;
};

// yaml-cpp accepts some tabs and explains the others badly.
bool FindTabs(absl::string_view text, std::vector<SyntaxError>* errors) {
  int line = 1;
  bool found = false, indent = true;
  int column = 0;
  for (char c : text) {
    ++column;
    if (c == '\n') {
      ++line;
      column = 0;
      indent = true;
    } else if (c == '\t' && indent) {
      errors->push_back({{line, column}, "tab in the indentation; use spaces"});
      found = true;
      indent = false;
    } else if (c != ' ') {
      indent = false;
    }
  }
  return found;
}

}  // namespace

Node Read(absl::string_view text, std::vector<SyntaxError>* errors) {
  if (FindTabs(text, errors)) return {};
  Builder builder(errors);
  std::istringstream in{std::string(text)};
  try {
    YAML::Parser parser(in);
    parser.HandleNextDocument(builder);
    Node root = builder.TakeRoot();
    Builder second(errors);
    if (parser.HandleNextDocument(second)) {
      errors->push_back({second.TakeRoot().mark,
                         "a second YAML document (---) is not allowed"});
    }
    return root;
  } catch (const YAML::Exception& e) {
    errors->push_back({At(e.mark), absl::StrCat("not valid YAML: ", e.msg)});
    return builder.TakeRoot();
  }
}

}  // namespace cadre::yaml
