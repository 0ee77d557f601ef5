// SPDX-License-Identifier: Apache-2.0
#include "calrt/manifest_schema.h"

namespace calrt {
namespace {

using enum ShapeOf;
using Type = ManifestType;
using Field = ManifestField;
constexpr bool kOptional = false;
constexpr bool kRequired = true;
constexpr bool kNullable = true;

// ---- scalars ------------------------------------------------------------------------------------

constexpr Type kUint{.shape = UINT, .max = kMaxManifestUint};
constexpr Type kCount{.shape = UINT, .min = 1, .max = kMaxCount};
constexpr Type kCountOrZero{.shape = UINT, .max = kMaxCount};
constexpr Type kPositive{.shape = UINT, .min = 1, .max = kMaxManifestUint};
constexpr Type kTile{.shape = UINT, .min = 1, .max = 65536};
constexpr Type kChips{.shape = UINT, .min = 1, .max = 16};
constexpr Type kNumber{.shape = NUMBER};
constexpr Type kBool{.shape = BOOL};
constexpr Type kText{.shape = TEXT, .max = 1024};
constexpr Type kName{.shape = TEXT, .min = 1, .max = 1024};
constexpr Type kPath{.shape = TEXT, .max = 65536};  // A02 and A03 judge it
constexpr Type kId{.shape = ID};
constexpr Type kSha256{.shape = HEX64};
constexpr Type kAddress{.shape = ADDRESS};
constexpr Type kTime{.shape = TIME};
constexpr Type kAlign4096{.shape = POWER_OF_2, .min = 1, .max = 4096};
constexpr Type kAlign{.shape = POWER_OF_2, .min = 1, .max = kMaxCount};

constexpr const char* kDtypeWords[] = {"f32", "bf16", "f16", "i8", "u8",
                                       "i16", "i32",  "u32", "i64"};
constexpr Type kDtype{.shape = ENUM, .words = kDtypeWords};
constexpr const char* kLevelWords[] = {"C0", "C1", "C2", "C3", "C4"};
constexpr Type kLevel{.shape = ENUM, .words = kLevelWords};

constexpr Type kUints{.shape = LIST, .max = 65536, .element = &kUint};
constexpr Type kTexts{.shape = LIST, .max = 4096, .element = &kText};
constexpr Type kNames{.shape = LIST, .min = 1, .max = 4096, .element = &kName};
constexpr Type kIds{.shape = LIST, .max = 4096, .element = &kId};
constexpr Type kCounts{.shape = LIST, .min = 1, .max = 256, .element = &kCountOrZero};
constexpr Type kDtypes{.shape = LIST, .min = 1, .max = 16, .element = &kDtype};
constexpr Type kRange{.shape = RANGE, .min = 1, .max = 4096, .element = &kCount};

// ---- model, tokenizer, target -------------------------------------------------------------------

constexpr const char* kRopeWords[] = {"interleaved", "half"};
constexpr Type kRopeStyle{.shape = ENUM, .words = kRopeWords};
constexpr Field kParamsFields[] = {
    {"bos", &kUint, kOptional},
    {"eos", &kUints, kOptional},
    {"ffn", &kCount, kOptional},
    {"rope_dim", &kCount, kOptional},
    {"rope_base", &kNumber, kOptional},
    {"rope_style", &kRopeStyle, kOptional},
    {"norm_eps", &kNumber, kOptional},
    {"tie_embeddings", &kBool, kOptional},
    {"qk_norm", &kBool, kOptional},
    {"experts", &kCountOrZero, kOptional},
    {"experts_used", &kCountOrZero, kOptional},
    {"expert_ffn", &kCountOrZero, kOptional},
    {"norm_topk", &kBool, kOptional},
};
constexpr Type kParams{.shape = OBJECT, .fields = kParamsFields};
constexpr Field kModelFields[] = {
    {"name", &kName},
    {"arch", &kName},
    {"vocab", &kCount},
    {"context", &kCount},
    {"layers", &kCount},
    {"embed", &kCount, kRequired, kNullable},
    {"heads", &kCount, kRequired, kNullable},
    {"kv_heads", &kCount},
    {"head_dim", &kCount},
    {"params", &kParams},
};
constexpr Type kModel{.shape = OBJECT, .fields = kModelFields};

constexpr const char* kTokenizerWords[] = {"gguf", "hf", "external"};
constexpr Type kTokenizerKind{.shape = ENUM, .words = kTokenizerWords};
constexpr Field kTokenizerFields[] = {
    {"kind", &kTokenizerKind, kRequired, kNullable}, {"artifact", &kId, kRequired, kNullable},
    {"template", &kId, kRequired, kNullable},        {"vocab", &kCountOrZero, kRequired, kNullable},
    {"add_bos", &kBool, kRequired, kNullable},
};
constexpr Type kTokenizer{.shape = OBJECT, .fields = kTokenizerFields};

constexpr Field kTargetFields[] = {
    {"driver", &kName},
    {"device_class", &kName, kRequired, kNullable},
    {"payload_root", &kPath, kOptional},
};
constexpr Type kTarget{.shape = OBJECT, .fields = kTargetFields};

// ---- artifacts and weights ----------------------------------------------------------------------

constexpr const char* kArtifactRoleWords[] = {
    "weights",      "tokenizer.vocab", "tokenizer.json", "tokenizer.template",
    "golden.input", "golden.output",   "license",        "readme",
    "calbin.graph", "calbin.commands", "calbin.io",      "calbin.address",
    "calbin.kv",    "calbin.params",   "calbin.meta",    "calbin.unassigned"};
constexpr Type kArtifactRole{.shape = ENUM, .words = kArtifactRoleWords, .open = true};
constexpr Field kArtifactFields[] = {
    {"id", &kId},
    {"path", &kPath},
    {"role", &kArtifactRole},
    {"media_type", &kText},
    {"bytes", &kUint, kRequired, kNullable},
    {"sha256", &kSha256, kRequired, kNullable},
    {"edge_sha256", &kSha256, kOptional},
    {"optional", &kBool, kOptional},
    {"chip", &kCountOrZero, kOptional, kNullable},
    {"region", &kId, kOptional},
};
constexpr Type kArtifact{.shape = OBJECT, .fields = kArtifactFields};
constexpr Type kArtifacts{.shape = LIST, .max = 4096, .element = &kArtifact};

constexpr Type kTensorDim{.shape = UINT, .min = 1, .max = kMaxCount};
constexpr Type kTensorShape{.shape = LIST, .min = 1, .max = 8, .element = &kTensorDim};
constexpr Field kRowFields[] = {
    {"name", &kName},   {"dtype", &kDtype}, {"shape", &kTensorShape},
    {"offset", &kUint}, {"bytes", &kUint},
};
constexpr Type kRow{.shape = TUPLE, .fields = kRowFields};
constexpr Type kRows{.shape = LIST, .max = 65536, .element = &kRow};
constexpr Type kColumns{.shape = COLUMNS, .min = 5, .max = 64, .element = &kRow};
constexpr Field kWeightsFields[] = {
    {"artifact", &kId}, {"align", &kAlign4096}, {"columns", &kColumns}, {"rows", &kRows}};
constexpr Type kWeights{.shape = OBJECT, .fields = kWeightsFields};

// ---- graphs -------------------------------------------------------------------------------------

constexpr Field kCapFields[] = {
    {"value", &kBool, kRequired, kNullable}, {"level", &kLevel}, {"source", &kText}};
constexpr Type kCap{.shape = OBJECT, .fields = kCapFields};
constexpr Field kGraphCapFields[] = {
    {"explicit_mask", &kCap, kOptional},
    {"explicit_positions", &kCap, kOptional},
    {"logit_rows", &kCap, kOptional},
    {"binding_sets", &kCap, kOptional},
};
constexpr Type kGraphCaps{.shape = OBJECT, .fields = kGraphCapFields};

constexpr const char* kSymbolWords[] = {"B", "T", "R", "V", "L", "C"};
constexpr Type kDim{.shape = DIM, .min = 1, .max = kMaxCount, .words = kSymbolWords};
constexpr Type kDims{.shape = LIST, .min = 1, .max = 8, .element = &kDim};
constexpr Type kStrides{.shape = LIST, .min = 1, .max = 8, .element = &kUint};
constexpr const char* kAxisWords[] = {"o", "i"};
constexpr Type kAxis{.shape = AXIS, .max = 7, .words = kAxisWords};
constexpr Type kOrder{.shape = LIST, .min = 2, .max = 9, .element = &kAxis};
constexpr Type kTileAxis{.shape = UINT, .max = 7};
constexpr Field kTileFields[] = {{"axis", &kTileAxis}, {"size", &kTile}};
constexpr Type kTileObject{.shape = OBJECT, .fields = kTileFields};
constexpr const char* kPadWords[] = {"keep", "zero"};
constexpr Type kPadWrite{.shape = ENUM, .words = kPadWords};
constexpr Field kLinearFields[] = {{"kind", &kText},
                                   {"padded", &kDims, kOptional, kNullable},
                                   {"pad_write", &kPadWrite, kOptional}};
constexpr Field kStridedFields[] = {{"kind", &kText},
                                    {"strides", &kStrides},
                                    {"bytes", &kPositive, kOptional},
                                    {"pad_write", &kPadWrite, kOptional}};
constexpr Field kTiledFields[] = {{"kind", &kText},
                                  {"tile", &kTileObject},
                                  {"order", &kOrder, kRequired, kNullable},
                                  {"padded", &kDims, kOptional, kNullable},
                                  {"pad_write", &kPadWrite, kOptional}};
constexpr Field kUndeterminedFields[] = {{"kind", &kText}, {"bytes", &kPositive, kOptional}};
constexpr Type kLinear{.shape = OBJECT, .fields = kLinearFields};
constexpr Type kStrided{.shape = OBJECT, .fields = kStridedFields};
constexpr Type kTiled{.shape = OBJECT, .fields = kTiledFields};
constexpr Type kUndetermined{.shape = OBJECT, .fields = kUndeterminedFields};
constexpr ManifestVariant kLayoutVariants[] = {{"linear", &kLinear},
                                               {"strided", &kStrided},
                                               {"tiled", &kTiled},
                                               {"undetermined", &kUndetermined}};
constexpr Type kLayout{.shape = UNION, .variants = kLayoutVariants};

constexpr const char* kInputWords[] = {"tokens",  "positions",  "lanes",
                                       "n_valid", "logit_rows", "mask"};
constexpr const char* kOutputWords[] = {"logits"};
constexpr Type kInputRole{.shape = ENUM, .words = kInputWords};
constexpr Type kOutputRole{.shape = ENUM, .words = kOutputWords};
constexpr const char* kDomainWords[] = {"host", "host_pinned", "device", "shared"};
constexpr Type kDomain{.shape = ENUM, .words = kDomainWords};
constexpr Type kDomains{.shape = LIST, .min = 1, .max = 4, .element = &kDomain};
constexpr Field kInputFields[] = {{"role", &kInputRole},
                                  {"dtype", &kDtype, kRequired, kNullable},
                                  {"shape", &kDims},
                                  {"layout", &kLayout},
                                  {"align", &kAlign, kOptional},
                                  {"domains", &kDomains, kOptional}};
constexpr Field kOutputFields[] = {{"role", &kOutputRole},
                                   {"dtype", &kDtype, kRequired, kNullable},
                                   {"shape", &kDims},
                                   {"layout", &kLayout},
                                   {"align", &kAlign, kOptional},
                                   {"domains", &kDomains, kOptional}};
constexpr Type kInput{.shape = OBJECT, .fields = kInputFields};
constexpr Type kOutput{.shape = OBJECT, .fields = kOutputFields};
constexpr Type kInputs{.shape = LIST, .max = 16, .element = &kInput};
constexpr Type kOutputs{.shape = LIST, .max = 16, .element = &kOutput};

constexpr const char* kGraphKindWords[] = {"prefill", "decode"};
constexpr const char* kLaneMapWords[] = {"none", "identity", "any"};
constexpr Type kGraphKind{.shape = ENUM, .words = kGraphKindWords};
constexpr Type kLaneMap{.shape = ENUM, .words = kLaneMapWords};
constexpr Field kGraphFields[] = {
    {"name", &kId},          {"kind", &kGraphKind},
    {"batch", &kCounts},     {"chunk", &kCounts, kRequired, kNullable},
    {"artifacts", &kIds},    {"share_group", &kName},
    {"lane_map", &kLaneMap}, {"inputs", &kInputs},
    {"outputs", &kOutputs},  {"caps", &kGraphCaps},
};
constexpr Type kGraph{.shape = OBJECT, .fields = kGraphFields};
constexpr Type kGraphs{.shape = LIST, .min = 1, .max = 256, .element = &kGraph};

// ---- KV and allowed geometry --------------------------------------------------------------------

constexpr const char* kKvAxisWords[] = {"layer", "kv", "lane", "cell", "head", "dim"};
constexpr Type kKvAxis{.shape = ENUM, .words = kKvAxisWords};
constexpr Type kKvOrder{.shape = LIST, .min = 6, .max = 6, .element = &kKvAxis};
constexpr Type kKvStrides{.shape = LIST, .min = 6, .max = 6, .element = &kUint};
constexpr Field kBaseFields[] = {{"layer", &kCountOrZero},
                                 {"kv", &kCountOrZero},
                                 {"chip", &kCountOrZero},
                                 {"address", &kAddress}};
constexpr Type kBase{.shape = OBJECT, .fields = kBaseFields};
constexpr Type kBases{.shape = LIST, .max = 65536, .element = &kBase};
constexpr const char* kSplitWords[] = {"none", "heads", "layers"};
constexpr const char* kOwnerWords[] = {"graph", "driver"};
constexpr Type kSplit{.shape = ENUM, .words = kSplitWords};
constexpr Type kOwner{.shape = ENUM, .words = kOwnerWords};
constexpr Field kGroupFields[] = {
    {"name", &kName},
    {"lanes", &kRange},
    {"cells", &kRange},
    {"order", &kKvOrder, kRequired, kNullable},
    {"strides", &kKvStrides, kRequired, kNullable},
    {"base", &kBases, kRequired, kNullable},
    {"split", &kSplit, kRequired, kNullable},
    {"owner", &kOwner},
    {"bytes", &kUint, kOptional},
};
constexpr Type kGroup{.shape = OBJECT, .fields = kGroupFields};
constexpr Type kGroups{.shape = LIST, .min = 1, .max = 256, .element = &kGroup};
constexpr Field kKvCapFields[] = {
    {"lane_copy", &kCap, kOptional}, {"range_copy", &kCap, kOptional},
    {"kv_read", &kCap, kOptional},   {"kv_write", &kCap, kOptional},
    {"k_rotate", &kCap, kOptional},  {"paged", &kCap, kOptional},
};
constexpr Type kKvCaps{.shape = OBJECT, .fields = kKvCapFields};
constexpr Field kKvFields[] = {
    {"dtype", &kDtypes},   {"layers", &kCount},  {"heads", &kCount},
    {"head_dim", &kCount}, {"groups", &kGroups}, {"caps", &kKvCaps},
};
constexpr Type kKv{.shape = OBJECT, .fields = kKvFields};

constexpr const char* kComputeWords[] = {"auto", "f32", "bf16", "int8", "package"};
constexpr const char* kParallelWords[] = {"none", "tensor"};
constexpr Type kComputeWord{.shape = ENUM, .words = kComputeWords};
constexpr Type kParallelMode{.shape = ENUM, .words = kParallelWords};
constexpr Type kComputes{.shape = LIST, .min = 1, .max = 8, .element = &kComputeWord};
constexpr Type kParallels{.shape = LIST, .min = 1, .max = 8, .element = &kParallelMode};
constexpr Field kAllowedFields[] = {
    {"lanes", &kRange},
    {"cells", &kRange},
    {"profiles", &kRange},
    {"depth", &kRange},
    {"chunks", &kRange, kRequired, kNullable},
    {"compute", &kComputes},
    {"kv_dtype", &kDtypes},
    {"logits_dtype", &kDtypes},
    {"parallel", &kParallels},
    {"placement", &kNames},
};
constexpr Type kAllowed{.shape = OBJECT, .fields = kAllowedFields};

// ---- memory, parallelism, versions --------------------------------------------------------------

constexpr const char* kPlanWords[] = {"static", "dynamic"};
constexpr const char* kRegionWords[] = {"params", "kv", "io", "scratch", "reserved"};
constexpr Type kPlan{.shape = ENUM, .words = kPlanWords};
constexpr Type kRegionKind{.shape = ENUM, .words = kRegionWords};
constexpr Field kRegionFields[] = {
    {"id", &kId},
    {"chip", &kCountOrZero},
    {"kind", &kRegionKind},
    {"address", &kAddress},
    {"bytes", &kUint},
    {"align", &kAlign},
    {"alias_of", &kId, kOptional},
};
constexpr Type kRegion{.shape = OBJECT, .fields = kRegionFields};
constexpr Type kRegions{.shape = LIST, .max = 65536, .element = &kRegion};
constexpr Field kMemoryFields[] = {
    {"plan", &kPlan},
    {"regions", &kRegions, kRequired, kNullable},
    {"chip_bytes", &kUints, kOptional},
};
constexpr Type kMemory{.shape = OBJECT, .fields = kMemoryFields};
constexpr Field kParallelismFields[] = {
    {"mode", &kParallelMode}, {"chips", &kChips}, {"degree", &kCount}};
constexpr Type kParallelism{.shape = OBJECT, .fields = kParallelismFields};

constexpr Type kVersionNumbers{.shape = LIST, .max = 8, .element = &kUint};
constexpr Field kVersionFields[] = {
    {"exact", &kName, kOptional},
    {"min", &kVersionNumbers, kOptional},
    {"below", &kVersionNumbers, kOptional},
};
constexpr Type kVersion{.shape = OBJECT, .fields = kVersionFields};
constexpr Field kVersionsFields[] = {
    {"driver_abi", &kVersion, kRequired, kNullable},
    {"packer", &kVersion, kOptional, kNullable},
    {"runtime", &kVersion, kOptional, kNullable},
    {"compiler", &kVersion, kOptional, kNullable},
    {"kernel_driver", &kVersion, kOptional, kNullable},
    {"firmware", &kVersion, kOptional, kNullable},
};
constexpr Type kVersions{.shape = OBJECT, .fields = kVersionsFields};

// ---- golden, provenance, claims, signatures -----------------------------------------------------

constexpr Field kLoadFields[] = {
    {"lanes", &kCount, kOptional},           {"cells", &kCount, kOptional},
    {"profiles", &kUints, kOptional},        {"chunks", &kUints, kOptional},
    {"depth", &kCount, kOptional},           {"compute", &kComputeWord, kOptional},
    {"kv_dtype", &kDtype, kOptional},        {"logits_dtype", &kDtype, kOptional},
    {"parallel", &kParallelMode, kOptional}, {"placement", &kName, kOptional},
};
constexpr Type kLoad{.shape = OBJECT, .fields = kLoadFields};
constexpr Type kInline{.shape = LIST, .max = 4096, .element = &kNumber};
constexpr Field kToleranceFields[] = {
    {"max_abs", &kNumber, kOptional},
    {"rel_rms", &kNumber, kOptional},
    {"argmax_agree", &kNumber, kOptional},
    {"exact", &kBool, kOptional},
};
constexpr Type kTolerance{.shape = OBJECT, .fields = kToleranceFields};
constexpr Field kGoldenInputFields[] = {
    {"role", &kInputRole},           {"dtype", &kDtype},
    {"shape", &kTensorShape},        {"artifact", &kId, kOptional},
    {"inline", &kInline, kOptional},
};
constexpr Field kGoldenOutputFields[] = {
    {"role", &kOutputRole},          {"dtype", &kDtype},
    {"shape", &kTensorShape},        {"artifact", &kId, kOptional},
    {"inline", &kInline, kOptional}, {"tolerance", &kTolerance},
};
constexpr Type kGoldenInput{.shape = OBJECT, .fields = kGoldenInputFields};
constexpr Type kGoldenOutput{.shape = OBJECT, .fields = kGoldenOutputFields};
constexpr Type kGoldenInputs{.shape = LIST, .max = 16, .element = &kGoldenInput};
constexpr Type kGoldenOutputs{.shape = LIST, .max = 16, .element = &kGoldenOutput};
constexpr Field kGoldenFields[] = {
    {"name", &kName},
    {"graph", &kName},
    {"load", &kLoad},
    {"inputs", &kGoldenInputs},
    {"outputs", &kGoldenOutputs},
};
constexpr Type kGolden{.shape = OBJECT, .fields = kGoldenFields};
constexpr Type kGoldens{.shape = LIST, .max = 256, .element = &kGolden};

constexpr Field kSourceFields[] = {
    {"name", &kText},       {"bytes", &kUint},          {"sha256", &kSha256},
    {"media_type", &kText}, {"url", &kText, kOptional},
};
constexpr Type kSource{.shape = OBJECT, .fields = kSourceFields};
constexpr Type kSources{.shape = LIST, .max = 4096, .element = &kSource};
constexpr const char* kProvenanceWords[] = {"vendor", "converted", "standin"};
constexpr Type kProvenanceKind{.shape = ENUM, .words = kProvenanceWords};
constexpr Field kProvenanceFields[] = {
    {"kind", &kProvenanceKind},
    {"created", &kTime, kRequired, kNullable},
    {"tool", &kText},
    {"sources", &kSources, kRequired, kNullable},
    {"license", &kText, kRequired, kNullable},
    {"command", &kText, kOptional},
    {"container", &kText, kOptional},
};
constexpr Type kProvenance{.shape = OBJECT, .fields = kProvenanceFields};
constexpr Field kClaimFields[] = {
    {"field", &kText},         {"value", &kNumber}, {"unit", &kText},
    {"digits", &kCountOrZero}, {"source", &kText},  {"level", &kLevel},
};
constexpr Type kClaim{.shape = OBJECT, .fields = kClaimFields};
constexpr Type kClaims{.shape = LIST, .max = 4096, .element = &kClaim};
constexpr Field kSignaturesFields[] = {{"expect", &kTexts}};
constexpr Type kSignatures{.shape = OBJECT, .fields = kSignaturesFields};

constexpr Field kRootFields[] = {
    {"manifest", &kText},           {"minor", &kUint},
    {"requires", &kTexts},          {"model", &kModel},
    {"tokenizer", &kTokenizer},     {"target", &kTarget},
    {"artifacts", &kArtifacts},     {"weights", &kWeights, kRequired, kNullable},
    {"graphs", &kGraphs},           {"kv", &kKv},
    {"allowed", &kAllowed},         {"memory", &kMemory},
    {"parallelism", &kParallelism}, {"versions", &kVersions},
    {"golden", &kGoldens},          {"provenance", &kProvenance},
    {"claims", &kClaims},           {"signatures", &kSignatures},
};
constexpr Type kRoot{.shape = OBJECT, .fields = kRootFields};

}  // namespace

const ManifestType& manifest_schema() { return kRoot; }

}  // namespace calrt
