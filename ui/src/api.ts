// Written by make generate from the Go structs. Do not edit.
// What is optional is absent where it is not known, or where there is none.

import type { ObjectMeta } from "./objectmeta";

/** ActiveEntry is a running import, and when it will end. */
export interface ActiveEntry extends ActiveImport {
  expected?: Estimate;
}

/** ActiveImport is that of a member as an object. */
export interface ActiveImport {
  namespace: string;
  name: string;
  source?: string;
  bytesDone?: number;
  bytesTotal?: number;
  atMostBytes?: number;
  bytesPerSecond?: number;
  startedAt: string;
  attempt?: number;
  maxAttempts?: number;
}

/** AnswerCounts counts the clusters of a report. */
export interface AnswerCounts {
  total: number;
  answered: number;
  unknown: number;
}

/** Approval allows one wave to start with one version. */
export interface Approval {
  /** wave that may start. */
  wave: string;
  /** version that may start. */
  version: string;
  /** sources that may start, by their digests as status.pendingApproval has them. */
  sources?: string[];
  /** by is the user who approves. */
  by: string;
  /** at is the time of the approval, for people, as in 2026-01-02T15:04:05Z. */
  at?: string;
}

/** ApprovalGiven is who approved a version for a wave. */
export interface ApprovalGiven {
  wave: string;
  by: string;
  at?: string;
}

/** Architecture of the machines that can boot a disk image, by Go's names, as KubeVirt has them. */
export type Architecture = "amd64" | "arm64" | "s390x";

/** Attention is one thing that waits for a person. */
export interface Attention {
  /** Kind of the object, as FleetDiskImage, MemberCluster, ImagePrune, or ConfigMap for the fleet's policy. */
  kind: string;
  name: string;
  reason: string;
  message?: string;
}

/** AttentionSummary is what waits for a person. */
export interface AttentionSummary {
  total: number;
  items?: Attention[];
}

/** BlastRadius is what would change if a policy replaced the one in force. */
export interface BlastRadius {
  /** Refused is why the policy would not come into force; empty: it would. */
  refused?: string[];
  /** Members in total, of which Changed would have another policy; Gain and Lose are those with more and less concurrency. */
  members: number;
  changed: number;
  gain: number;
  lose: number;
  /** ConcurrencyNow and ConcurrencyThen are summed up over all members. */
  concurrencyNow: number;
  concurrencyThen: number;
  /** FleetNow and FleetThen are the fleet-wide budget; absent for none. */
  fleetNow?: number;
  fleetThen?: number;
  /** BudgetChange describes what changes of it. */
  budgetChange?: string;
  /** Windows says at which times the numbers change; absent where they do not. */
  windows?: string;
  /** Rows are the members that change, those whose concurrency changes most first. */
  rows: BlastRow[];
  omitted?: number;
  /** Unmatched are overrides that no member is subject to. */
  unmatched?: string[];
  /** UnknownKeys are keys that this hub does not know, and that have no effect. */
  unknownKeys?: string[];
  /** Ineffective says which keys have no effect, and why. */
  ineffective?: string[];
  /** HeldMembers have an own ConfigMap that leaves them less than the policy. */
  heldMembers?: string[];
}

/** BlastRow is a member whose policy would change. */
export interface BlastRow {
  member: string;
  /** Now and Then are its effective concurrency; Now is absent without a policy in force. */
  now?: number;
  then: number;
  /** PlannedNow and PlannedThen are what the policy says, where the member's own ConfigMap leaves less. */
  plannedNow?: number;
  plannedThen?: number;
  /** Running imports, and images that wait. */
  running?: number;
  queued?: number;
  /** OldestQueuedAt is since when the first of them waits. */
  oldestQueuedAt?: string;
  /** WaitNow and WaitThen are when the image that has waited longest is expected. */
  waitNow?: Estimate;
  waitThen?: Estimate;
  /** OtherChanges of the policy, as "retryLimit 3→5". */
  otherChanges?: string;
  /** From is where the policy comes from: "fleet default" or overrides. */
  from: string;
  /** Unknown is why all this may be out of date; empty if it is not. */
  unknown?: string;
}

/** ByCluster is the members. */
export const ByCluster = "cluster";

/** ByFleet is the whole fleet. */
export const ByFleet = "fleet";

/** BySource is the groups of sources of the policy, and SourceOther. */
export const BySource = "source";

/** CellAbsent: it is not there, and not meant to be. */
export const CellAbsent = 1;

/** CellBehind: it is another version or revision than is wanted. */
export const CellBehind = 64;

/** CellFailed: its import failed. */
export const CellFailed = 6;

/** CellLeaving: it is pruned or deleted. */
export const CellLeaving = 7;

/** CellMessage: there is a message about it. */
export const CellMessage = 128;

/** CellOther: it is in a phase that this hub does not know. */
export const CellOther = 8;

/** CellPlanned: it is meant to be there, and is not yet. */
export const CellPlanned = 2;

/** CellQueued: it waits. */
export const CellQueued = 3;

/** CellReady: machines can use it. */
export const CellReady = 5;

/** CellReferenced: a machine needs it. */
export const CellReferenced = 16;

/** CellStale: it may have changed since the member's last report. */
export const CellStale = 32;

/** CellSyncing: it is imported. */
export const CellSyncing = 4;

/** CellUnknown: nothing is known of it. */
export const CellUnknown = 0;

/** Change is a field that differs between two versions. */
export interface Change {
  field: string;
  from?: string;
  to?: string;
}

export const ChooseClustersMessage = "choose clusters with cols or selector";

/** ClusterAPIRef names a Cluster of Cluster API on the hub's API server. */
export interface ClusterAPIRef {
  /** namespace of the Cluster. */
  namespace: string;
  /** name of the Cluster. */
  name: string;
}

/** ClusterCounts counts clusters by state. */
export interface ClusterCounts {
  total: number;
  toApply: number;
  progressing: number;
  succeeded: number;
  failed: number;
  timedOut: number;
  deferred: number;
}

/** ClusterState is the state of one cluster in a rollout. */
export type ClusterState = "Deferred" | "Failed" | "Progressing" | "Succeeded" | "TimedOut" | "ToApply";

/** ClusterSummary describes one cluster in short. */
export interface ClusterSummary {
  cluster: string;
  state: ClusterState;
  reason?: string;
  message?: string;
}

export interface Condition {
  type: string;
  status: string;
  observedGeneration?: number;
  lastTransitionTime: string;
  reason: string;
  message: string;
}

/** Counts sums up images. */
export interface Counts {
  /** Images that exist; an image under two names counts twice. */
  images: number;
  /** Absent images are planned and do not exist. */
  absent?: number;
  /** Phases with at least one image. */
  phases?: Partial<Record<Phase, number>>;
  /** References is the number of VirtualMachines that use the images, Unreferenced the number of images that none uses. */
  references: number;
  unreferenced: number;
  /** Bytes of provisioned storage. */
  bytes: number;
}

/** DataSourceReference names a CDI DataSource. */
export interface DataSourceReference {
  /** namespace of the DataSource. */
  namespace?: string;
  /** name of the DataSource, as in fedora. */
  name: string;
}

/** DeletionPolicy says what happens to the images of a FleetDiskImage when it is deleted. */
export type DeletionPolicy = "Delete" | "Retain";

/** EffectiveField is a field, and where it comes from. */
export interface EffectiveField {
  field: string;
  /** Value without credentials; absent where an override removes the template's. */
  value?: string;
  /** From is template, or an override as in overrides[2]. */
  from: string;
}

/** EffectiveImage is the template of a FleetDiskImage with the overrides of one cluster. */
export interface EffectiveImage {
  /** Source without credentials. */
  source?: string;
  /** Revision of it, and Digest as approvals name it. */
  revision: string;
  digest: string;
  /** Fields that are set, or removed by an override, by name. */
  fields: EffectiveField[];
  /** Waits is why the cluster cannot begin, and what to do; absent where it can. */
  waits?: string;
  missingLabels?: string[];
}

/** ElectionLease is the name of the Lease by which a replica is elected. */
export const ElectionLease = "ot-hub";

/** ErrorAnswer is the body of an answer that is an error. */
export interface ErrorAnswer {
  error: string;
}

/** Estimate is when something is expected, with a range. */
export interface Estimate {
  at?: string;
  earliest?: string;
  latest?: string;
  /** AtMost: a size is not known, and the size of the disk was taken for it. */
  atMost?: boolean;
  reason?: string;
  message?: string;
}

/** Event says what changed since the one before it on the stream. */
export interface Event {
  /** Seq is the id of the event: a stream that is opened again after it goes on from there. */
  seq: string;
  topics: Topic[];
  /** Reset: anything may have changed, since another replica answers or the last id is unknown. */
  reset?: boolean;
}

/** FailingImage is a failed image of a member. */
export interface FailingImage extends ImageSummary {
  member: string;
}

/** FailingSummary counts the failed images. */
export interface FailingSummary {
  images: number;
  members: number;
  /** Named are the first, by member, namespace and name. */
  named?: FailingImage[];
}

export const FieldManager = "kubectl-ot";

/** FleetDiskImage brings a disk image to many clusters before VMs need it there. */
export interface FleetDiskImage extends TypeMeta {
  metadata?: ObjectMeta;
  spec: FleetDiskImageSpec;
  status?: FleetDiskImageStatus;
}

/** FleetDiskImageSpec says which disk image which clusters get, and how it is rolled out. */
export interface FleetDiskImageSpec {
  /** version of the image, as in 2.1.0. */
  version: string;
  /** imageName is the first part of the VMDiskImages' names. */
  imageName?: string;
  /** targetNamespace is the namespace of the VMDiskImages in the members. */
  targetNamespace: string;
  /** template of the VMDiskImages. */
  template: VMDiskImageSpec;
  /** overrides change fields of the template for some clusters, where storage, links or architectures differ. */
  overrides?: ImageOverride[];
  /** placement selects the clusters that get the image. */
  placement: Placement;
  /** rollout says in which order and how fast clusters get the image. */
  rollout?: RolloutStrategy;
  /** approvals of waves that have requireApproval. */
  approvals?: Approval[];
  /** retry starts the image over in clusters where it has failed. */
  retry?: RetryRequest;
  /** retention says what happens to replaced versions. */
  retention?: Retention;
  /** deletionPolicy says what happens to the images in the members when this object is deleted: Retain keeps them, Delete deletes each once it is unreferenced. */
  deletionPolicy?: DeletionPolicy;
}

/** FleetDiskImageStatus is the progress of the rollout. */
export interface FleetDiskImageStatus {
  /** observedGeneration is the generation of the spec that this status is about; -1 before the first. */
  observedGeneration?: number;
  /** phase of the rollout of the current version. */
  phase?: RolloutPhase;
  /** reason for the phase, from a closed set. */
  reason?: string;
  /** message explains the reason and says what to do, if anything. */
  message?: string;
  /** versions, the current one first. */
  versions?: VersionStatus[];
  /** successesRecorded: versions say which of them succeeded. */
  successesRecorded?: boolean;
  /** clusters by their state with the current version. */
  clusters: ClusterCounts;
  /** currentWave is the first wave that is not done; empty if all are. */
  currentWave?: string;
  /** waves that have clusters or are named in the spec, in order. */
  waves?: WaveStatus[];
  /** pendingApproval is what clusters of the current wave wait for, with reason AwaitingApproval or while others of the wave start. */
  pendingApproval?: PendingApproval;
  /** observedRetry is the last token of spec.retry that the plans of all clusters have that had failed, but those in pendingRetries. */
  observedRetry?: string;
  /** pendingRetries are the clusters, by name, that had failed when observedRetry was set, or an earlier token, and whose plans could not have it because they were offline, or because the API server refused their plans. */
  pendingRetries?: string[];
  /** lastSuccessAt is when a cluster last succeeded, by the hub's clock. */
  lastSuccessAt?: string;
  /** expectedAt is when the rollout is expected to be done, to the minute, by what the clusters import and queue, else by its pace until lastSuccessAt. */
  expectedAt?: string;
  /** expectedReason is why expectedAt is absent while clusters are unfinished: what the rollout waits for, such as AwaitingApproval, or why no time can be given, such as TooFewSamples. */
  expectedReason?: string;
  /** failing lists the first clusters that failed or timed out, by name. */
  failing?: ClusterSummary[];
  /** blocked lists the first clusters, by name, that wait until a person acts there: in progress, or not started with reason FieldsUnknown, LabelMissing or SourceInvalid. */
  blocked?: ClusterSummary[];
  /** blockedSince is since when every cluster in progress is blocked, and no other can start, by the hub's clock. */
  blockedSince?: string;
  /** conditions; exactly one of Ready, Reconciling and Stalled is True. */
  conditions?: Condition[];
}

/** FleetImage is a FleetDiskImage with its versions, the current one first. */
export interface FleetImage {
  name: string;
  versions: ImageVersion[];
  /** KeepVersions is how many of them are kept, whether machines need them or not. */
  keepVersions: number;
  /** KeepUnreferencedFor is when the others go, as in 168h0m0s; absent: they do not go by themselves. */
  keepUnreferencedFor?: string;
}

/** FleetImageList is a page of FleetDiskImages with their versions, by name. */
export interface FleetImageList {
  images: FleetImage[];
  /** Total is how many match, Clusters how many the fleet has, and UnknownClusters how many of these may have more than is known. */
  total: number;
  clusters: number;
  unknownClusters?: number;
}

/** FleetPolicy is the fleet's policy: as it is written, and as it is in force. */
export interface FleetPolicy extends PolicyState {
  /** InForce is the data of the policy in force; absent if there was never a valid one. */
  inForce?: Record<string, string>;
  /** Windows are the numbers that the windows of the whole fleet make of InForce; absent without such windows. */
  windows?: PolicyWindowNumbers;
  configMap: PolicyConfigMap;
  /** Keys are all keys that this hub knows. */
  keys: PolicyKey[];
  /** Overrides of the policy in force, in their order, over Members. */
  overrides: PolicyOverride[];
  members: number;
}

/** Found is one match. */
export interface Found {
  kind: FoundKind;
  /** Name of the cluster or FleetDiskImage, or the source. */
  name: string;
  /** Version, for FoundVersion. */
  version?: string;
  /** State of a cluster, or phase of a rollout; empty if unknown. */
  state?: string;
}

/** FoundKind is what a Found is. */
export type FoundKind = "Cluster" | "Rollout" | "Source" | "Version";

export const FromTemplate = "template";

/** History is what the elected replica remembers. */
export interface History {
  by: string;
  /** Since is when this replica began to remember. */
  since: string;
  /** Prometheus says which points before Since are from there; absent where the hub has no Prometheus to ask, or has not yet. */
  prometheus?: HistoryPrometheus;
  /** Start is the begin of the first of the points, each of StepSeconds. */
  start: string;
  stepSeconds: number;
  /** Lines are those with the most in the first series, of Total that there are. */
  lines: HistoryLine[];
  total: number;
}

/** HistoryLine is one source or cluster. */
export interface HistoryLine {
  /** Name of the source or cluster; empty for the fleet. */
  name?: string;
  /** Values by series. */
  values: Record<string, (number | null)[]>;
  /** UnknownMembers are how many members were unknown at most at each point, whose part of Values is missing. */
  unknownMembers?: number[];
}

/** HistoryPrometheus is what a History has from Prometheus. */
export interface HistoryPrometheus {
  /** From and Until are the first and the end of the last point of the fleet that is from there; absent where none is. */
  from?: string;
  until?: string;
  /** ReadAt is when the hub asked last, and Problem why it got no answer; empty if it did. */
  readAt?: string;
  problem?: string;
}

/** Image is one distinct image over all members. */
export interface Image extends Counts {
  /** Source that the image is downloaded from. */
  source: string;
  /** Members is the number of members that are known to have it or to plan it. */
  members: number;
  /** Unknown is the number of unknown members; each may have and reference it. */
  unknown: number;
  /** UnreferencedSince is when the last VirtualMachine of the known members stopped using it. */
  unreferencedSince?: string;
}

/** ImageCluster is what one cluster has of a FleetDiskImage. */
export interface ImageCluster {
  cluster: string;
  /** Unknown is why it may have more than is known. */
  unknown?: string;
  /** Versions that it has, or is to have, the newest first. */
  versions: VersionInCluster[];
  /** Effective is what it is to have of the current version; absent where the placement does not select it. */
  effective?: EffectiveImage;
}

/** ImageClusters is a page of the clusters that have, or are to have, a version of a FleetDiskImage, by name. */
export interface ImageClusters {
  clusters: ImageCluster[];
  total: number;
}

/** MemberImages counts the images of a member. */
export interface ImageCounts {
  total: number;
  queued: number;
  syncing: number;
  ready: number;
  failed: number;
  /** leaving counts images that are being deleted or pruned. */
  leaving: number;
  /** unreferenced counts images that no VirtualMachine needs. */
  unreferenced: number;
  /** bytes of storage that the images take, as provisioned. */
  bytes: number;
}

/** ImageDetail is one distinct image by member. */
export interface ImageDetail extends Image {
  /** PerMember lists the members that are known to have it, by name. */
  in: ImageInMember[];
  /** UnknownMembers may have it, by name. */
  unknownMembers?: UnknownMember[];
}

/** ImageEntry is one VMDiskImage of a member. */
export interface ImageEntry {
  namespace: string;
  name: string;
  phase?: Phase;
  reason?: Reason;
  references: number;
  unreferencedSince?: string;
  bytes: number;
}

/** ImageInMember is what one member has of an image. */
export interface ImageInMember extends Counts {
  member: string;
  unknown?: string;
  unreferencedSince?: string;
  /** Entries are the VMDiskImages, by namespace and name. */
  entries: ImageEntry[];
}

/** ImageList is a page of the distinct images. */
export interface ImageList {
  images: Image[];
  next?: string;
  /** Total is how many match. */
  total: number;
  unknownMembers?: UnknownMember[];
}

/** ImageOrigin says who created a VMDiskImage. */
export type ImageOrigin = "Plan" | "Template";

/** ImageOverride changes fields of the template for some clusters. */
export interface ImageOverride {
  /** clusterSelector selects MemberClusters by their labels; {} selects all. */
  clusterSelector?: LabelSelector;
  /** clusterNames adds MemberClusters by name, whatever their labels. */
  clusterNames?: string[];
  /** sourceType instead of the template's. */
  sourceType?: SourceType;
  /** url instead of the template's. */
  url?: string;
  /** checksum instead of the template's; empty removes it. */
  checksum?: string;
  /** secretRef instead of the template's; empty removes it. */
  secretRef?: string;
  /** certConfigMap instead of the template's; empty removes it. */
  certConfigMap?: string;
  /** extraHeaders instead of all of the template's; an empty list removes them. */
  extraHeaders?: string[];
  /** secretExtraHeaders instead of all of the template's; an empty list removes them. */
  secretExtraHeaders?: string[];
  /** pullMethod instead of the template's. */
  pullMethod?: PullMethod;
  /** storageClass instead of the template's; empty removes it. */
  storageClass?: string;
  /** snapshotClass instead of the template's; empty removes it. */
  snapshotClass?: string;
  /** diskSize instead of the template's, from 1Mi to 64Ti, as text. */
  diskSize?: string;
  /** architecture instead of the template's. */
  architecture?: Architecture;
  /** dataSource instead of the template's, with sourceType dataSource. */
  dataSource?: DataSourceReference;
  /** priority instead of the template's. */
  priority?: number;
}

/** ImagePrune deletes images that a PruneReport lists as candidates, and only those that their cluster still finds as reported: not in a plan and not referenced by a VirtualMachine. */
export interface ImagePrune extends TypeMeta {
  metadata?: ObjectMeta;
  spec: ImagePruneSpec;
  status?: ImagePruneStatus;
}

/** ImagePrunePhase is the phase of an ImagePrune. */
export type ImagePrunePhase = "Complete" | "Failed" | "Pending" | "Running" | "Undone";

/** ImagePruneSpec says which candidates of a PruneReport to delete. */
export interface ImagePruneSpec {
  /** reportRef names the reviewed PruneReport. */
  reportRef: PruneReportRef;
  /** clusters of the report to prune in. */
  clusters?: string[];
  /** images of the report to prune, as namespace/name; * matches any characters except /, as in vmdi-farm/ubuntu-*. */
  images?: string[];
  /** includeOthers also prunes images that no plan created, but people, CI or the template of a VirtualMachine. */
  includeOthers: boolean;
  /** undoWindow is how long an image stays usable, and the prune can be undone, after the image's cluster starts the prune, as in 24h. */
  undoWindow?: string;
  /** deadline is how long to wait for clusters beyond the undo window. */
  deadline?: string;
  /** approvedBy is the user who reviewed the report. */
  approvedBy: string;
  /** undo cancels the prune of all images that have not been deleted yet. */
  undo: boolean;
}

/** ImagePruneStatus is the progress of an ImagePrune. */
export interface ImagePruneStatus {
  /** observedGeneration is the generation of the spec that this status is about; -1 before the first. */
  observedGeneration?: number;
  /** phase of the prune. */
  phase?: ImagePrunePhase;
  /** reason for the phase, from a closed set. */
  reason?: string;
  /** message explains the reason and says what to do, if anything. */
  message?: string;
  /** startedAt is when the first cluster was asked, by the hub's clock. */
  startedAt?: string;
  /** finishedAt is when the phase became final, by the hub's clock. */
  finishedAt?: string;
  /** pendingUntil is when the last known undo window ends, by its cluster's clock. */
  pendingUntil?: string;
  /** clusters is how many clusters have images to prune. */
  clusters: number;
  /** targets counts the images by state. */
  targets: TargetCounts;
  /** bytes of storage of all targets. */
  bytes: number;
  /** prunedBytes is the storage of the pruned targets. */
  prunedBytes: number;
  /** skipped lists the first skipped or unknown images, by cluster, namespace and name. */
  skipped?: TargetSummary[];
  /** conditions; exactly one of Ready, Reconciling and Stalled is True. */
  conditions?: Condition[];
}

/** ImageSelector selects VMDiskImages of a cluster. */
export interface ImageSelector {
  /** namespaces of the images. */
  namespaces?: string[];
  /** names of the images; * matches any characters, as in ubuntu-*. */
  names?: string[];
}

/** ImageState is how an image is in a cluster, as the cells of a Matrix have it. */
export type ImageState = "Absent" | "Failed" | "Importing" | "Leaving" | "Other" | "Planned" | "Queued" | "Ready" | "Unknown";

/** ImageSummary describes one image in short. */
export interface ImageSummary {
  namespace: string;
  name: string;
  reason?: Reason;
  message?: string;
}

/** ImageVersion is a version of a FleetDiskImage over all clusters. */
export interface ImageVersion {
  version: string;
  current?: boolean;
  namespace: string;
  image: string;
  since?: string;
  /** Source and DiskBytes are absent where they are not recorded. */
  source?: string;
  diskBytes?: number;
  /** States counts the clusters by what they have of it. */
  states: Partial<Record<ImageState, number>>;
  /** Referenced clusters have machines that need it. */
  referenced: number;
  unreferenced: number;
  stale?: number;
  /** Kept: it is one of the versions that are kept. */
  kept?: boolean;
}

/** ImagesByBytes: those that take the most storage last. */
export const ImagesByBytes = "bytes";

/** ImagesByMembers: those that the most members have last. */
export const ImagesByMembers = "members";

/** ImagesByReferences: those that the most machines need last. */
export const ImagesByReferences = "references";

/** ImagesBySource: by source, the default. */
export const ImagesBySource = "source";

/** ImagesByUnreferenced: those that no machine has needed for longest first. */
export const ImagesByUnreferenced = "unreferenced";

/** KeptReason says why an image is not a candidate. */
export type KeptReason = "InTransition" | "Leaving" | "Referenced" | "TooRecent" | "Wanted";

/** KeptTotal is the number and size of images that are kept for one reason. */
export interface KeptTotal extends PruneTotal {
  reason: KeptReason;
}

export interface LabelSelector {
  matchLabels?: Record<string, string>;
  matchExpressions?: LabelSelectorRequirement[];
}

export interface LabelSelectorRequirement {
  key: string;
  operator: string;
  values?: string[];
}

/** LeasePrefix and the name of a replica form the name of its Lease. */
export const LeasePrefix = "ot-hub-replica-";

/** MachineDefaults are what KubeVirt infers for a machine that boots an image and names none. */
export interface MachineDefaults {
  /** instancetype by name, as in u1.medium. */
  instancetype?: string;
  /** instancetypeKind says where KubeVirt looks for it. */
  instancetypeKind?: string;
  /** preference by name, as in fedora. */
  preference?: string;
  /** preferenceKind says where KubeVirt looks for it. */
  preferenceKind?: string;
}

/** Matrix is images × clusters, one byte a cell. */
export interface Matrix {
  /** Seq identifies this state: the since of the next request. */
  seq: string;
  /** Since is set where Cells are changes of the Matrix with that Seq, which has the same rows and columns; Cols are there where what is known of a cluster changed. */
  since?: string;
  rows?: MatrixRow[];
  cols?: MatrixColumn[];
  /** Labels are the keys of labels that group the clusters: fewer values than clusters, and more than one. */
  labels?: string[];
  /** Cells by row: that of row r and column c is at r × columns + c. */
  cells: string;
  changed?: number[];
}

/** MatrixColumn is a cluster. */
export interface MatrixColumn {
  cluster: string;
  unknown?: string;
  /** Group is the value of the label that the request groups by; empty for none. */
  group?: string;
  /** State of the cluster in one word, and since when it is silent. */
  state?: MemberState;
  silentSince?: string;
}

/** MatrixRow is an image. */
export interface MatrixRow {
  /** Source that the image is downloaded from, for RowsSources. */
  source?: string;
  /** Image and Version are a FleetDiskImage and one of its versions, and Namespace and Name the VMDiskImage in the members, for RowsFleetDiskImages. */
  image?: string;
  version?: string;
  current?: boolean;
  namespace?: string;
  name?: string;
}

/** MaxAnswerBytes bounds an answer. */
export const MaxAnswerBytes = 33554432;

export const MaxFound = 20;

export const MaxMatrixCells = 2097152;

/** MaxMatrixLabels is how many keys of labels it names. */
export const MaxMatrixLabels = 32;

export const MaxMatrixRows = 10000;

export const MaxPolicyBytes = 32768;

export const MaxReachClusters = 20;

export const MaxReachHosts = 20;

export const MaxReachSources = 20;

/** MaxSummaryAttention is how many things it names that need a person. */
export const MaxSummaryAttention = 10;

/** MaxSummaryFailing is how many failed images it names. */
export const MaxSummaryFailing = 5;

/** MaxSummaryMembers is how many members that are not Ready it names. */
export const MaxSummaryMembers = 8;

/** MaxSummaryMessage is the length of a message in it. */
export const MaxSummaryMessage = 160;

/** MaxSummaryRollouts is how many rollouts it names. */
export const MaxSummaryRollouts = 12;

export const MaxTransferUnknownMembers = 20;

/** Me is who the caller is for the API server, and what they may do. */
export interface Me {
  user: string;
  groups?: string[];
  mode: Mode;
  /** SignOut: signing out has an effect. */
  signOut?: boolean;
  may: Permission[];
  /** ExpiresAt is when the session ends; absent where that is not known. */
  expiresAt?: string;
  /** Version is that of the program that serves the page, a hub or kubectl ot; HubVersion that of the hub. */
  version?: string;
  hubVersion?: string;
  hubNamespace?: string;
  /** PolicyNamespace and PolicyName are those of the ConfigMap of the fleet's policy. */
  policyNamespace?: string;
  policyName?: string;
  /** Context is the kubeconfig's context of the hub; empty where that is not known. */
  context?: string;
  /** Kubeconfig is the file that --kubeconfig named; empty for what every command reads. */
  kubeconfig?: string;
}

/** Member is the summary of a member. */
export interface Member extends MemberSummary {
  labels?: Record<string, string>;
  /** State in one word, the Reason for it, and Since when it has it. */
  state: MemberState;
  reason?: string;
  since?: string;
  /** Queued, Syncing and FailingTotal count images, as the member last reported. */
  queued?: number;
  syncing?: number;
  failingTotal?: number;
  /** Ready, Reachable, AgentHealthy and PolicyAcknowledged are conditions of its MemberCluster: True, False or Unknown. */
  ready: string;
  reachable: string;
  agentHealthy: string;
  policyAcknowledged: string;
  message?: string;
  /** Quarantine is the reason of its quarantine; empty for none. */
  quarantine?: string;
  transfers?: MemberTransfers;
  clusterUID?: string;
  agentVersion?: string;
  policy?: MemberPolicy;
  budget?: number;
  slotsUsed?: number;
  /** OwnConcurrency is the limit of the member's own policy ConfigMap; absent for none. */
  ownConcurrency?: number;
  lastReport?: string;
  failing?: ImageSummary[];
}

/** MemberCluster is a cluster of the fleet. */
export interface MemberCluster extends TypeMeta {
  metadata?: ObjectMeta;
  spec: MemberClusterSpec;
  status?: MemberClusterStatus;
}

/** MemberClusterSpec says which cluster belongs to the fleet and how it is reached. */
export interface MemberClusterSpec {
  /** connection between hub and member. */
  connection: MemberConnection;
  /** quarantine cuts the member off: nothing is synced, it gets no grants, and what it may be running does not count for fleetConcurrency. */
  quarantine?: MemberQuarantine;
  /** agentNamespace is the namespace of ot-agent in the member. */
  agentNamespace?: string;
  /** insecureSkipTLSVerify allows a kubeconfig with insecure-skip-tls-verify. */
  insecureSkipTLSVerify?: boolean;
}

/** MemberClusterStatus is what the hub knows about a member. */
export interface MemberClusterStatus {
  /** observedGeneration is the generation of the spec that this status is about; -1 before the first. */
  observedGeneration?: number;
  /** namespace of the member on the hub. */
  namespace?: string;
  /** shard is the hub replica that syncs the member's mailbox, or "agent" in pull mode. */
  shard?: string;
  /** transfers is the member's part of the fleet-wide budget; absent without one. */
  transfers?: MemberTransfers;
  /** clusterUID is the UID of the member's kube-system namespace, from its first report or from annotation pelotech.ot/accept-cluster. */
  clusterUID?: string;
  /** agentVersion of the agent that reports. */
  agentVersion?: string;
  /** policy that the hub plans for the member. */
  policy?: MemberPolicy;
  /** plan is the version of the newest plan. */
  plan?: PlanVersion;
  /** acknowledgedPlan is the plan under which the member's ledger was last written. */
  acknowledgedPlan?: PlanVersion;
  /** budget of the member's SyncLedger: how many imports may run. */
  budget?: number;
  /** ownConcurrency is the concurrency of the member's own policy ConfigMap. */
  ownConcurrency?: number;
  /** window says whether the member may import by the windows of the policy. */
  window?: MemberWindow;
  /** uptime is when the member was online, and when no window held it up. */
  uptime?: MemberUptime;
  /** slotsUsed is how many slots of the SyncLedger are taken. */
  slotsUsed?: number;
  /** images of the member, counted. */
  images?: ImageCounts;
  /** references is how many VirtualMachines need an image, summed over all images. */
  references?: number;
  /** failing lists the first failed images, by namespace and name. */
  failing?: ImageSummary[];
  /** lastReport is when the hub last received a report, by the hub's clock. */
  lastReport?: string;
  /** silentSince is when a member whose agent no longer reports was last heard, by the hub's clock. */
  silentSince?: string;
  /** conditions; exactly one of Ready, Reconciling and Stalled is True. */
  conditions?: Condition[];
}

/** MemberCondition is a condition of a member. */
export interface MemberCondition {
  type: string;
  status: string;
  reason: string;
  message?: string;
  since: string;
  /** Wanted is the status that a healthy member has. */
  wanted: string;
  /** WhatToDo where Status is not Wanted, in a sentence; absent where there is nothing to do, or where Message says it. */
  whatToDo?: string;
  /** Runbook is the page that says more; absent for none. */
  runbook?: string;
}

/** MemberConnection says how hub and member reach each other. */
export interface MemberConnection {
  /** kubeconfigSecretRef names a Secret in the hub's namespace with a kubeconfig for the member. */
  kubeconfigSecretRef?: SecretKeyRef;
  /** clusterAPI names a Cluster of Cluster API. */
  clusterAPI?: ClusterAPIRef;
  /** pull selects pull mode: the member's agent connects to the hub, for members that the hub cannot reach. */
  pull?: MemberPull;
}

/** MemberDetail is one member: who it is, what holds of it, and why it may import as much as it may. */
export interface MemberDetail extends Member {
  /** Mode is how hub and member reach each other: ModePush or ModePull. */
  mode: string;
  agentNamespace?: string;
  /** Shard is the hub replica that syncs it. */
  shard?: string;
  createdAt: string;
  /** ReportedAt is when the hub received the report, by its own clock; absent where this replica has only seen what was stored when it was elected. */
  reportedAt?: string;
  silentSince?: string;
  /** Plan is the newest, and AcknowledgedPlan the one that the member works under. */
  plan?: PlanVersion;
  acknowledgedPlan?: PlanVersion;
  /** Conditions, those that somebody has to look at first. */
  conditions: MemberCondition[];
  /** BudgetChain is why as many imports may run as may. */
  budgetChain: WhyBudget;
  /** Activity is what the member imports and what waits; ActivityUnknown is why it may be out of date, empty if it is not. */
  activity?: WhyActivity;
  activityUnknown?: string;
  imageCounts?: ImageCounts;
}

/** MemberImages are the images of one page of a member's report. */
export interface MemberImages {
  images: ReportedImage[];
  unknown?: string;
  next?: string;
}

/** MemberList is a page of members, by name unless sorted by something else. */
export interface MemberList {
  members: Member[];
  next?: string;
  /** Total is how many members match. */
  total: number;
  /** States counts those that match the request but for its state. */
  states: MemberStates;
}

/** MemberPolicy is the policy that the hub plans for a member. */
export interface MemberPolicy {
  /** data of the policy, with every key. */
  data?: Record<string, string>;
  /** source of the policy: "fleet default" or the overrides that apply. */
  source?: string;
}

/** MemberPull selects pull mode: the member's agent connects to the hub, with its own credential that can access only the member's mailbox. */
export interface MemberPull {
  /** autoAccept admits the first agent that presents the join token. */
  autoAccept?: boolean;
  /** acceptedKey is the fingerprint of the agent key to admit, as in SHA256:…. */
  acceptedKey?: string;
  /** revoked invalidates all credentials of the agent and all join tokens at once. */
  revoked?: boolean;
}

/** MemberQuarantine excludes a member from the fleet without removing it. */
export interface MemberQuarantine {
  /** reason for the quarantine, for people. */
  reason: string;
}

/** MemberQuarantineDetail is the quarantine of a member, and what it would do to begin one or to end it. */
export interface MemberQuarantineDetail {
  member: string;
  /** Quarantined: it is in quarantine, for Reason, since Since by the hub's condition. */
  quarantined: boolean;
  reason?: string;
  since?: string;
  /** SetBy is the field manager that wrote it last, at SetAt, as the API server recorded; it does not record the person. */
  setBy?: string;
  setAt?: string;
  /** ResourceVersion that all this is about: a change of another one is decided anew. */
  resourceVersion: string;
  begin: QuarantineDecision;
  end: QuarantineDecision;
}

/** MemberState is the state of a member in one word. */
export type MemberState = "Failing" | "NeverReported" | "NotReady" | "Quarantined" | "Ready" | "Silent" | "Stalled";

/** MemberStates counts the members by state. */
export interface MemberStates {
  total: number;
  ready: number;
  notReady: number;
  failing: number;
  stalled: number;
  silent: number;
  neverReported: number;
  quarantined: number;
  /** Unknown is how many of them may have more images than is known. */
  unknown: number;
  /** Named are the first that are not Ready, the worst first. */
  named?: NamedMember[];
}

/** MemberStretch is a time without interruption. */
export interface MemberStretch {
  /** from is when it began. */
  from: string;
  /** until is when it ended. */
  until?: string;
  /** secondsBefore is how long all earlier stretches lasted together, listed or not. */
  secondsBefore?: number;
}

/** MemberSummary sums up one member. */
export interface MemberSummary extends Counts {
  member: string;
  unknown?: string;
}

/** MemberTransfers is a member's part of the fleet-wide budget. */
export interface MemberTransfers {
  /** granted is how many imports the newest grant allows. */
  granted: number;
  /** held is how many slots the budget reserves for the member: the most it may be running, even while it is silent. */
  held: number;
  /** wanted is how many slots the member requested last. */
  wanted: number;
  /** excess is how many slots the member reports beyond what the hub has planned or granted. */
  excess?: number;
  /** heldUntil is the latest time, by the hub's clock, until which the slots stay reserved if the member stays silent. */
  heldUntil?: string;
  /** reason for these numbers, from a closed set. */
  reason?: string;
  /** message explains the reason. */
  message?: string;
}

/** MemberUptime is when a member could make progress, by the hub's clock. */
export interface MemberUptime {
  /** online are the stretches in which it was online: it reported, its identity was confirmed, and it was not in quarantine. */
  online?: MemberStretch[];
  /** open are the stretches in which it was also waiting for no window. */
  open?: MemberStretch[];
}

/** MemberWindow is where a member is in the windows of its policies, or of the fleet's budget. */
export interface MemberWindow {
  /** opensAt is when it may import again. */
  opensAt?: string;
  /** openedAt is since when it may import, or could until the window closed. */
  openedAt?: string;
}

export const MembersByBytes = "bytes";

export const MembersByFailing = "failing";

export const MembersByImages = "images";

/** MembersByLastReport: those that have not reported for longest first. */
export const MembersByLastReport = "lastReport";

export const MembersByName = "name";

/** MembersByQueued: those with the most images that wait first, and so on. */
export const MembersByQueued = "queued";

export const MembersBySlots = "slots";

export const MembersByState = "state";

export const MembersByVersion = "version";

/** Mode is how a person is signed in. */
export type Mode = "local" | "proxy" | "token";

/** ModePull: the member's agent connects to the hub. */
export const ModePull = "pull";

/** ModePush: the hub connects to the member. */
export const ModePush = "push";

/** NamedMember is a member that is not Ready. */
export interface NamedMember {
  member: string;
  state: MemberState;
  reason?: string;
  /** Since when it has the state; absent if unknown. */
  since?: string;
  message?: string;
}

/** NamedReach is a cluster that would start. */
export interface NamedReach {
  cluster: string;
  offline?: string;
}

/** NamedRollout is a rollout in short. */
export interface NamedRollout {
  name: string;
  version: string;
  phase?: RolloutPhase;
  reason?: string;
  currentWave?: string;
  clusters: ClusterCounts;
  expectedAt?: string;
}

/** OfflineClusters says how a wave treats clusters that are offline. */
export type OfflineClusters = "Defer" | "Wait";

export const OrderAscending = "asc";

export const OrderDescending = "desc";

/** PendingApproval is what an approval has to name for a wave to start. */
export interface PendingApproval {
  wave: string;
  /** sources that clusters of the wave get and that no approval covers yet, by their digests, sorted. */
  sources?: string[];
}

/** Permission is a right, and whether the caller has it. */
export interface Permission {
  verb: string;
  /** Resource in its plural, as fleetdiskimages; "fleet" is the read API. */
  resource: string;
  allowed: boolean;
  /** Role is the ClusterRole of chart ot-hub that has it; empty where none of them does. */
  role?: string;
}

/** Phase is the phase of a VMDiskImage. */
export type Phase = "Deleting" | "Failed" | "PrunePending" | "Queued" | "Succeeded" | "Syncing" | "Terminating";

/** Placement selects clusters of the fleet: those that the selector matches and those that are named, except the excluded ones. */
export interface Placement {
  /** clusterSelector selects MemberClusters by their labels; {} selects all. */
  clusterSelector?: LabelSelector;
  /** clusterNames adds MemberClusters by name, whatever their labels. */
  clusterNames?: string[];
  /** excludedClusters removes MemberClusters by name. */
  excludedClusters?: string[];
}

/** PlanItemReport is what the agent did with a planned image. */
export interface PlanItemReport {
  state: PlanItemState;
  /** reason is set while the image waits until a person acts. */
  reason?: Reason;
  /** revision that the plan asked for. */
  revision?: string;
  message?: string;
}

/** PlanItemState is what the agent did with a planned image. */
export type PlanItemState = "Applied" | "NotOurs" | "Rejected" | "Waiting";

/** PlanVersion orders the plans of one member: by epoch, then by sequence. */
export interface PlanVersion {
  /** epoch is raised when the hub finds that the member has a newer plan than the hub knows of, as after a restore from a backup. */
  epoch: number;
  /** sequence is raised with every change of the plan's content. */
  sequence: number;
  /** hash of the plan's content, to detect two different plans with the same version. */
  hash?: string;
}

/** PolicyConfigMap is the ConfigMap of the policy. */
export interface PolicyConfigMap {
  namespace: string;
  name: string;
  /** ResourceVersion is absent where there is none. */
  resourceVersion?: string;
  data?: Record<string, string>;
  /** Owner is a GitOps controller that would write its own data again; absent for none. */
  owner?: PolicyOwner;
  /** Unreadable is why nothing is known of it. */
  unreadable?: string;
}

/** PolicyKey is a key of the policy, and which values it takes. */
export interface PolicyKey {
  name: string;
  kind: PolicyKind;
  /** Least and Most are the bounds of a number or duration. */
  least?: string;
  most?: string;
  /** Default is what holds where nothing sets the key; absent for nothing. */
  default?: string;
  /** FleetOnly keys are for the whole fleet, and overrides cannot set them. */
  fleetOnly?: boolean;
  /** Meaning is what the key does, in Markdown. */
  meaning: string;
}

/** PolicyKind is the type of the values of a key. */
export type PolicyKind = "boolean" | "duration" | "groups" | "hosts" | "number" | "overrides" | "windows";

/** PolicyNumbers are the numbers of a policy that windows replace. */
export interface PolicyNumbers {
  concurrency: number;
  /** FleetConcurrency is absent without a fleet-wide budget. */
  fleetConcurrency?: number;
}

/** PolicyOverride is an override of the policy. */
export interface PolicyOverride {
  /** Source names it, as in override edge=true. */
  source: string;
  /** Members that it matches. */
  members: number;
  keys: PolicyOverrideKey[];
}

/** PolicyOverrideKey is a key that an override sets. */
export interface PolicyOverrideKey {
  name: string;
  value: string;
  /** Members of which the override decides the key: no other one wins over it. */
  members: number;
}

/** PolicyOwner is a GitOps controller that has data of the policy's ConfigMap. */
export interface PolicyOwner {
  /** Controller is its product, as in Flux; Manager its name as a field manager. */
  controller: string;
  manager: string;
  /** Source is what it applies, as in Kustomization flux-system/images; absent where the object does not say. */
  source?: string;
}

/** PolicyState is the state of the fleet's policy. */
export interface PolicyState {
  /** Accepted: the ConfigMap is in force as it is. */
  accepted: boolean;
  message?: string;
}

/** PolicyWindowNumbers are the numbers in force at the time of the answer, and the next ones. */
export interface PolicyWindowNumbers {
  now: PolicyNumbers;
  /** ChangesAt is when the next other numbers come into force, and Then what these are; both absent where no change is near. */
  changesAt?: string;
  then?: PolicyNumbers;
}

/** PruneBy says what the candidates of a PruneReport are grouped by. */
export type PruneBy = "age" | "cluster" | "image";

/** PruneGroup counts candidates of a PruneReport. */
export interface PruneGroup {
  /** Name of the image as namespace/name, of the cluster, or the range of ages. */
  name: string;
  clusters: number;
  images: number;
  bytes: number;
  /** Others of the images were made by people, not by a plan. */
  others?: number;
  /** DeclaredBy is the FleetDiskImage that the images are versions of. */
  declaredBy?: string;
  /** OldestUnreferencedSince is when the last machine left the image that is unreferenced for longest. */
  oldestUnreferencedSince?: string;
  /** YoungestUnreferencedSince is the same of the image that is unreferenced for the shortest time; absent where that is unknown of one. */
  youngestUnreferencedSince?: string;
}

/** PruneGroups are the candidates of a PruneReport that an ImagePrune would select, by group, those that take most storage first; ages by age. */
export interface PruneGroups {
  report: string;
  digest: string;
  by: PruneBy;
  /** Total of what is selected, which an ImagePrune with the same images, clusters and includeOthers deletes. */
  total: PruneGroup;
  /** LeftOut were made by people, and stay without includeOthers. */
  leftOut: PruneTotal;
  /** Groups are the first of GroupsTotal, without those that TooRecent counts. */
  groups: PruneGroup[];
  groupsTotal: number;
  omitted: PruneTotal;
  /** TooRecent are the images of groups of which one image was referenced within unreferencedFor, or it is not known when: an ImagePrune selects by name, not by age. */
  tooRecent: PruneTotal;
  /** Warnings are names that match nothing, and clusters with more images than fit into a plan. */
  warnings?: string[];
}

/** PruneProgress is an ImagePrune and how far it is. */
export interface PruneProgress {
  name: string;
  createdAt: string;
  report: string;
  digest: string;
  /** Images and Clusters that it names, and how many; absent for all. */
  images?: string[];
  imagesTotal?: number;
  clusters?: string[];
  clustersTotal?: number;
  includeOthers?: boolean;
  approvedBy: string;
  undo?: boolean;
  undoWindowSeconds: number;
  phase?: ImagePrunePhase;
  reason?: string;
  message?: string;
  startedAt?: string;
  finishedAt?: string;
  pendingUntil?: string;
  inClusters: number;
  targets: TargetCounts;
  bytes: number;
  prunedBytes: number;
  skipped?: TargetSummary[];
}

/** PruneProgressList is a page of ImagePrunes. */
export interface PruneProgressList {
  prunes: PruneProgress[];
  next?: string;
}

/** PruneReport is the summary of a PruneReport's status. */
export interface PruneReport {
  name: string;
  /** Schedule is set where it creates reports and is none itself. */
  schedule?: string;
  phase?: PruneReportPhase;
  reason?: string;
  message?: string;
  /** LastReport and NextScheduleTime of a schedule. */
  lastReport?: string;
  nextScheduleTime?: string;
  startedAt?: string;
  completedAt?: string;
  digest?: string;
  clusters: AnswerCounts;
  unknownClusters?: UnknownCluster[];
  candidates: PruneTotal;
  others: PruneTotal;
  undeclared: PruneTotal;
  kept?: KeptTotal[];
  orphans: PruneTotal;
}

/** PruneReportList is a page of PruneReports, by name. */
export interface PruneReportList {
  reports: PruneReport[];
  next?: string;
}

/** PruneReport lists which images in which clusters nothing needs, and why each other image is kept. */
export interface PruneReportObject extends TypeMeta {
  metadata?: ObjectMeta;
  spec: PruneReportSpec;
  status?: PruneReportStatus;
}

/** PruneReportPhase is the phase of a PruneReport. */
export type PruneReportPhase = "Collecting" | "Complete" | "Failed" | "Scheduled";

/** PruneReportRef names a PruneReport as it was reviewed. */
export interface PruneReportRef {
  /** name of the PruneReport. */
  name: string;
  /** digest of the report, from its status. */
  digest: string;
}

/** PruneReportSpec says what a report covers and, with schedule, when reports are made. */
export interface PruneReportSpec {
  /** placement selects the clusters to ask. */
  placement?: Placement;
  /** imageSelector selects the images that the report covers. */
  imageSelector?: ImageSelector;
  /** unreferencedFor is how long no VirtualMachine must have referenced an image for it to be a candidate, by its cluster's clock, as in 168h. */
  unreferencedFor?: string;
  /** answerDeadline is how long to wait for online clusters that have not answered, as in 10m. */
  answerDeadline?: string;
  /** schedule makes reports at these times, in Cron format, as in "0 6 * * 1". */
  schedule?: string;
  /** timeZone of the schedule, as in Europe/Berlin. */
  timeZone?: string;
  /** suspend stops making reports for the schedule. */
  suspend?: boolean;
  /** historyLimit is how many finished reports of the schedule are kept. */
  historyLimit?: number;
}

/** PruneReportStatus is the summary of a report. */
export interface PruneReportStatus {
  /** observedGeneration is the generation of the spec that this status is about; -1 before the first. */
  observedGeneration?: number;
  /** phase of the report, or Scheduled. */
  phase?: PruneReportPhase;
  /** reason for the phase, from a closed set. */
  reason?: string;
  /** message explains the reason and says what to do, if anything. */
  message?: string;
  /** startedAt is when the first cluster was asked, by the hub's clock. */
  startedAt?: string;
  /** completedAt is when the report became complete, by the hub's clock. */
  completedAt?: string;
  /** clusters of the report, counted. */
  clusters: AnswerCounts;
  /** unknownClusters lists the first unknown clusters, by name. */
  unknownClusters?: UnknownCluster[];
  /** candidates are the images that can be pruned. */
  candidates: PruneTotal;
  /** others are the candidates that no plan created, but people, CI or the template of a VirtualMachine. */
  others: PruneTotal;
  /** undeclared are the candidates that a plan created and that no FleetDiskImage declares any more. */
  undeclared: PruneTotal;
  /** kept are the images that are not candidates, by reason. */
  kept?: KeptTotal[];
  /** orphans are storage objects that belong to no image. */
  orphans: PruneTotal;
  /** pages is the number of PruneReportPages. */
  pages: number;
  /** digest of the report's UID and pages. */
  digest?: string;
  /** lastScheduleTime is the scheduled time of the newest report. */
  lastScheduleTime?: string;
  /** nextScheduleTime is when the next report is due. */
  nextScheduleTime?: string;
  /** lastReport is the name of the newest PruneReport of the schedule. */
  lastReport?: string;
  /** conditions; exactly one of Ready, Reconciling and Stalled is True. */
  conditions?: Condition[];
}

/** PruneRow is about one image, one storage object, or one unknown cluster. */
export interface PruneRow {
  cluster: string;
  clusterUID?: string;
  verdict: Verdict;
  /** Reason why an image is kept, or a cluster is unknown; Detail explains it. */
  reason?: string;
  detail?: string;
  /** Kind is VMDiskImage, or the kind of an orphan; empty for a cluster. */
  kind?: string;
  namespace?: string;
  name?: string;
  uid?: string;
  revision?: string;
  phase?: Phase;
  origin?: ImageOrigin;
  /** DeclaredBy is the FleetDiskImage that an image is a version of. */
  declaredBy?: string;
  /** Image and ImageUID are the image that an orphan was created for. */
  image?: string;
  imageUID?: string;
  /** Bytes are unknown for single kept images. */
  bytes?: number;
  unreferencedSince?: string;
  /** ObservedAt is the time of the cluster's report, by its own clock. */
  observedAt?: string;
}

/** PruneRows is a page of the rows of a PruneReport, by cluster. */
export interface PruneRows {
  report: string;
  digest: string;
  rows: PruneRow[];
  next?: string;
}

/** PruneState is the state of one image of an ImagePrune. */
export type PruneState = "Pending" | "Pruned" | "Skipped" | "Undone" | "Unknown" | "Waiting";

/** PruneStatus is the progress of pruning one image. */
export interface PruneStatus {
  /** uid of the ImagePrune. */
  uid: string;
  state: PruneState;
  /** reason why the image is not pruned, or not yet. */
  reason?: string;
  /** message explains the reason. */
  message?: string;
  /** until is when the undo window ends, by the member's clock. */
  until?: string;
}

/** PruneSummary is a PruneReport in short. */
export interface PruneSummary {
  report: string;
  completedAt?: string;
  digest: string;
  candidates: PruneTotal;
  others: PruneTotal;
  unknownClusters: number;
}

/** PruneTarget is the progress of one target. */
export interface PruneTarget {
  cluster: string;
  namespace: string;
  name: string;
  uid: string;
  revision?: string;
  bytes: number;
  state: PruneState;
  reason?: string;
  message?: string;
  /** Until is the end of its undo window, by its cluster's clock. */
  until?: string;
}

/** PruneTargets is a page of the targets of an ImagePrune, by cluster, namespace and name. */
export interface PruneTargets {
  targets: PruneTarget[];
  next?: string;
}

/** PruneTotal is the number and size of images or storage objects. */
export interface PruneTotal {
  count: number;
  bytes: number;
}

/** Publish says where else an image can be found. */
export interface Publish {
  /** dataSource keeps a CDI DataSource in the image's namespace that points at what serves. */
  dataSource?: boolean;
  /** name of the DataSource. */
  name?: string;
}

/** PullMethod says who pulls the container image of a registry source. */
export type PullMethod = "node" | "pod";

/** QuarantineDecision is what follows if a quarantine begins or ends. */
export interface QuarantineDecision {
  effects: string[];
  /** ByHand are commands for what the hub does not do. */
  byHand?: string[];
  /** Refused is why it cannot be done now; empty if it can. */
  refused?: string;
}

/** QueuedEntry is an image that waits, and when it will be ready. */
export interface QueuedEntry extends QueuedImport {
  /** Note is why it is passed over; empty if it is not. */
  note?: string;
  expected?: Estimate;
}

/** QueuedImport is that of a member as an object, likewise. */
export interface QueuedImport {
  namespace: string;
  name: string;
  source?: string;
  priority?: number;
  bytes?: number;
  atMostBytes?: number;
  queuedAt: string;
  notBefore?: string;
  opensAt?: string;
  reason?: Reason;
  attempts?: number;
}

/** ReachDownload is what clusters download from one host. */
export interface ReachDownload {
  /** Host of the sources; absent where they name none. */
  host?: string;
  clusters: number;
  bytes: number;
  atMost?: boolean;
}

/** ReachSource is what some clusters of a wave are to have. */
export interface ReachSource {
  /** Digest as approvals name it. */
  digest: string;
  /** Source without credentials, and From the overrides that it comes from, as in overrides[2]; none for the template alone. */
  source?: string;
  from?: string[];
  clusters: number;
}

/** Reason says why a VMDiskImage or VirtualMachine is in its phase. */
export type Reason = "AcquiringImage" | "ArchitectureMismatch" | "BackingOff" | "CDIMissing" | "CDITooOld" | "CDIUnavailable" | "CertConfigMapMissing" | "Checking" | "ChecksumMismatch" | "CloningRootDisk" | "DataDiskFailed" | "DataDiskLost" | "DataDiskRefused" | "DataSourceForbidden" | "DataSourceForeign" | "DataSourceInvalid" | "DataSourceMissing" | "DataSourceNotReady" | "DataSourceRefused" | "DataSourcesNotServed" | "DataVolumeLost" | "DataVolumeRefused" | "Deleted" | "DiskTooSmall" | "Forbidden" | "IgnoredOnDeploy" | "ImageDeleting" | "ImageFailed" | "ImageMissing" | "ImageNamespaceMissing" | "ImageRefused" | "ImportFailed" | "ImporterNotStarting" | "ImporterRefused" | "ImporterUnschedulable" | "Importing" | "InstancetypeMissing" | "InsufficientStorage" | "KubeVirtMissing" | "MachineError" | "MachineRefused" | "NameTaken" | "NamespaceMissing" | "NamespaceShare" | "NamespaceTerminating" | "NetworkMissing" | "NotFound" | "NothingToPublish" | "OtherImagePublished" | "Paused" | "PolicyMissing" | "PreferenceMissing" | "PreparingDataDisk" | "Published" | "Publishing" | "QuotaExceeded" | "Ready" | "Referenced" | "RequestFailed" | "ResyncLimit" | "RootDiskFailed" | "RootDiskRefused" | "Running" | "SecretForbidden" | "SecretInvalid" | "SecretMissing" | "SnapshotClassMismatch" | "SnapshotClassMissing" | "SnapshotFailed" | "Snapshotting" | "SpecInvalid" | "Stalled" | "Starting" | "Stopped" | "StorageClassMissing" | "StorageLost" | "StorageProfileIncomplete" | "Superseded" | "Timeout" | "TooManyPublications" | "UndoWindow" | "VolumePending" | "WaitingForFleet" | "WaitingForImage" | "WaitingForSlot" | "WaitingForSource" | "WaitingForWindow";

/** RecordedOverrides are the overrides of a version. */
export interface RecordedOverrides {
  items?: ImageOverride[];
}

export const ReplicaName = "replica.ot-hub.internal";

/** ReportedImage is one VMDiskImage of a member. */
export interface ReportedImage {
  namespace: string;
  name: string;
  /** uid of the VMDiskImage; empty if it does not exist. */
  uid?: string;
  /** origin says who created it; empty for people and CI. */
  origin?: ImageOrigin;
  /** source is what the image is downloaded from: sourceType, url and checksum in one string. */
  source?: string;
  /** revision that phase and reason are about: the one that the spec asked for when the agent last reconciled it. */
  revision?: string;
  /** servingRevision is the revision that VMs are cloned from; empty if none. */
  servingRevision?: string;
  phase?: Phase;
  reason?: Reason;
  /** message of the image's status, truncated. */
  message?: string;
  /** stalled: condition Stalled of the image is True, so a person has to correct something. */
  stalled?: boolean;
  /** opensAt is when the window of the policy opens that the image waits for. */
  opensAt?: string;
  /** references is how many VirtualMachines need the image. */
  references: number;
  /** holders are the first VirtualMachines that need the image, as namespace/name. */
  holders?: string[];
  /** unreferencedSince is when references last became 0, by the member's clock. */
  unreferencedSince?: string;
  /** bytes of storage that the image takes, as provisioned: spec.diskSize for each imported revision. */
  bytes?: number;
  /** downloadBytes is the size of the download, if known. */
  downloadBytes?: number;
  /** attempts started for the current revision. */
  attempts?: number;
  /** retry is the token of the plan's item under which the image was last started over, or found not to have failed. */
  retry?: string;
  /** syncedAt is when the current revision was imported, by the member's clock. */
  syncedAt?: string;
  /** plan says what the agent did with the planned image; absent if the plan does not list it. */
  plan?: PlanItemReport;
  /** prune is the progress of the current or last prune of the image. */
  prune?: ReportedPrune;
}

/** ReportedPrune is the progress of a PlannedPrune. */
export interface ReportedPrune extends PruneStatus {
  /** imageUID is the UID of the VMDiskImage to prune. */
  imageUID: string;
}

/** Retention says what happens to versions that a newer one replaced. */
export interface Retention {
  /** keepVersions is how many versions are kept, including the current one. */
  keepVersions?: number;
  /** keepUnreferencedFor deletes images of older versions in each cluster once no VirtualMachine has referenced them for this long, as in 168h, and the current version is ready there if the cluster is to have it. */
  keepUnreferencedFor?: string;
}

/** RetryRequest starts an image over in the clusters where it has failed. */
export interface RetryRequest {
  /** token of the request, as in 2026-01-02T15:04:05Z. */
  token: string;
  /** clusters in which it starts over. */
  clusters?: string[];
}

/** Rollout is the summary of a FleetDiskImage's status. */
export interface Rollout {
  name: string;
  version: string;
  /** Observed: the status is about this version, not the one before. */
  observed: boolean;
  phase?: RolloutPhase;
  reason?: string;
  message?: string;
  currentWave?: string;
  clusters: ClusterCounts;
  waves?: WaveStatus[];
  failing?: ClusterSummary[];
  blocked?: ClusterSummary[];
  expectedAt?: string;
  /** ExpectedReason is why ExpectedAt is absent while clusters are unfinished. */
  expectedReason?: string;
  /** Attention: it waits for a person, or has failed clusters. */
  attention?: boolean;
}

/** RolloutCluster is the progress of one cluster with the current version. */
export interface RolloutCluster {
  cluster: string;
  wave: string;
  state: ClusterState;
  reason?: string;
  message?: string;
  /** StartedAt is when the hub planned it; absent where that is unknown. */
  startedAt?: string;
  /** Expected is when it will be ready, for clusters in progress. */
  expected?: Estimate;
}

/** RolloutClusters is a page of the clusters that a FleetDiskImage is placed in, by name. */
export interface RolloutClusters {
  clusters: RolloutCluster[];
  /** Total is how many match. */
  total: number;
  next?: string;
}

/** RolloutDetail is a FleetDiskImage: what it rolls out, in which order, who has decided what, and which versions there were. */
export interface RolloutDetail extends Rollout {
  /** UID and Generation identify what this is about. */
  uid: string;
  generation: number;
  /** Since is when the version became the current one. */
  since?: string;
  /** Namespace and Image name the VMDiskImage in the members. */
  namespace: string;
  image: string;
  /** Source that it is downloaded from, and DiskBytes the size of the disk. */
  source: string;
  diskBytes: number;
  /** Lanes are the waves in order, with what the spec says of them. */
  lanes: RolloutLane[];
  /** MaxFailures is how many clusters may fail before the others are held back, as in 5%. */
  maxFailures?: string;
  /** ProgressDeadline is how long a cluster may take, as in 6h0m0s. */
  progressDeadline?: string;
  offlineClusters?: OfflineClusters;
  /** Paused says who paused it; absent where it is not. */
  paused?: RolloutPause;
  lastSuccessAt?: string;
  blockedSince?: string;
  /** RetryRequested: clusters that have failed are about to start over. */
  retryRequested?: boolean;
  /** Changes since the version before; absent for the first one. */
  changes?: VersionChanges;
  versions: RolloutVersion[];
}

/** RolloutLane is a wave: what the spec says of it, and when it ran. */
export interface RolloutLane {
  name: string;
  clusters: ClusterCounts;
  /** AtATime is how many clusters import together, as in 25%; absent: all. */
  atATime?: string;
  /** MinSuccessTime is how long it must have been done before the next one starts. */
  minSuccessTime?: string;
  requireApproval?: boolean;
  /** Approval of the wave; absent also where PendingSources wait for another one. */
  approval?: ApprovalGiven;
  pendingSources?: number;
  /** StartedAt is when its first cluster that is known to have started did, and DoneAt when it became done. */
  startedAt?: string;
  doneAt?: string;
}

/** RolloutList is a page of FleetDiskImages. */
export interface RolloutList {
  rollouts: Rollout[];
  next?: string;
  /** Total is how many match, and All how many there are. */
  total: number;
  all: number;
  /** Phases counts all of them; those whose phase is unknown are not in it. */
  phases?: Partial<Record<RolloutPhase, number>>;
  /** Attention is how many wait for a person, or have failed clusters. */
  attention?: number;
}

/** RolloutOwners are the GitOps controllers that have fields which people change of a rollout, and would write their own values again. */
export interface RolloutOwners {
  /** Approvals, Paused and Retry are who has spec.approvals, spec.rollout.paused and spec.retry, as in Flux (Kustomization flux-system/images); absent for nobody. */
  approvals?: string;
  paused?: string;
  retry?: string;
}

/** RolloutPause is who paused a rollout, where kubectl ot or the dashboard did. */
export interface RolloutPause {
  by?: string;
  because?: string;
}

/** RolloutPhase is the phase of the rollout of a version. */
export type RolloutPhase = "Failed" | "Progressing" | "Succeeded" | "Waiting";

/** RolloutReach is what the approval of a wave would start. */
export interface RolloutReach {
  name: string;
  uid: string;
  generation: number;
  version: string;
  wave: string;
  /** Observed: the counts are of this version. */
  observed: boolean;
  /** Approval that the wave has already; absent for none, and where Sources are to be added: then Extends is the one that another would replace. */
  approval?: ApprovalGiven;
  extends?: ApprovalGiven;
  /** ApproveSources is what spec.approvals[].sources has to be, Extends included; absent where no cluster gets another source than the template's. */
  approveSources?: string[];
  sources?: ReachSource[];
  /** Waiting clusters of those that start cannot begin, for a missing label or an invalid override: the rollout says which. */
  waiting?: number;
  /** Clusters that start, Offline of these are offline. */
  clusters: number;
  offline: number;
  named: NamedReach[];
  before?: RolloutLane[];
  atATime?: string;
  /** EachBytes is what one of them downloads that gets the template. */
  eachBytes: number;
  atMost?: boolean;
  /** Downloads are those of the clusters that get another revision, by host, the largest MaxReachHosts: Bytes of all, AtMostBytes as AtMost. */
  downloads: ReachDownload[];
  bytes: number;
  atMostBytes?: boolean;
  unchanged?: number;
  /** Seconds from its start until the last of them is done, with a range. */
  seconds?: number;
  earliestSeconds?: number;
  latestSeconds?: number;
  unknownReason?: string;
  unknownMessage?: string;
  changes?: VersionChanges;
}

/** Rollout says in which order and how fast the clusters get the image. */
export interface RolloutStrategy {
  /** waves, in order. */
  waves?: Wave[];
  /** maxConcurrency of wave rest and of waves that set none: a number, or a percentage of the wave as in 25%. */
  maxConcurrency?: number | string;
  /** minSuccessTime of waves that set none, as in 1h. */
  minSuccessTime?: string;
  /** maxFailures is how many clusters may fail before no more clusters are started: a number, or a percentage of the placement as in 5%, rounded down. */
  maxFailures?: number | string;
  /** progressDeadline is how long a cluster may take, counted while it is online, before it counts as failed, as in 6h. */
  progressDeadline?: string;
  /** paused: while true, no further cluster starts. */
  paused?: boolean;
  /** offlineClusters says how a wave treats offline clusters: Defer continues without them, Wait waits for them. */
  offlineClusters?: OfflineClusters;
}

/** RolloutSummary counts the FleetDiskImages by phase. */
export interface RolloutSummary {
  total: number;
  phases?: Partial<Record<RolloutPhase, number>>;
  /** Unobserved rollouts have a status about the spec before, or none: their phase is unknown. */
  unobserved?: number;
  /** Named are the first that are not done: those that wait for a person or failed first. */
  named?: NamedRollout[];
}

/** RolloutVersion is a version that a FleetDiskImage remembers. */
export interface RolloutVersion {
  version: string;
  since: string;
  namespace: string;
  image: string;
  revision: string;
  /** CanGoBack: kubectl ot rollout abort --back-to can; NotRecorded is why it cannot. */
  canGoBack?: boolean;
  notRecorded?: string;
  approvals?: ApprovalGiven[];
}

/** RolloutsByClusters: those with the most clusters last. */
export const RolloutsByClusters = "clusters";

/** RolloutsByExpected: what is expected first. */
export const RolloutsByExpected = "expected";

/** RolloutsByFailed: those with the most failed clusters last. */
export const RolloutsByFailed = "failed";

/** RolloutsByName: by name, the default. */
export const RolloutsByName = "name";

/** RolloutsByPhase: those that wait for a person or failed first. */
export const RolloutsByPhase = "phase";

export const RolloutsInAttention = "attention";

export const Root = "/fleet/v1/";

/** RowsFleetDiskImages: the versions of the FleetDiskImages. */
export const RowsFleetDiskImages = "fdi";

/** RowsSources: the distinct sources of images. */
export const RowsSources = "source";

export const RunbooksURL = "https://github.com/pelotech/ot-fleet/blob/main/charts/ot-hub/runbooks/";

/** SearchAnswer is what has all words that were searched for in its name, the best first. */
export interface SearchAnswer {
  found: Found[];
  /** More than those match. */
  more?: boolean;
}

/** SecretKeyRef names one key of a Secret in the hub's namespace. */
export interface SecretKeyRef {
  /** name of the Secret. */
  name: string;
  /** key that holds the kubeconfig. */
  key?: string;
}

/** SeriesBytes is bytes per second. */
export const SeriesBytes = "bytes";

/** SeriesQueued is images that wait for a slot. */
export const SeriesQueued = "queued";

/** SeriesSlots is running imports. */
export const SeriesSlots = "slots";

/** SourceRate is how fast imports from one group of sources were of late in a member. */
export interface SourceRate {
  /** name of the group in the policy, or other. */
  name: string;
  /** p20, p50 and p80 are bytes per second of one import: a fifth were slower than p20, half slower than p50, a fifth faster than p80. */
  p20?: number;
  p50?: number;
  p80?: number;
  /** overheadSeconds is the median time of an import that is not its download: Pods that start, conversions, snapshots. */
  overheadSeconds?: number;
  /** samples is how many imports the rates are of. */
  samples?: number;
  /** since is when the oldest of them ended. */
  since?: string;
  /** transferredBytes were downloaded since the process with this activity's bootID started. */
  transferredBytes?: number;
}

/** SourceType says where a disk image comes from. */
export type SourceType = "blank" | "dataSource" | "gcs" | "http" | "registry" | "s3";

export const StateUnknown = "unknown";

/** Summary is the fleet on one page. */
export interface Summary {
  /** ElectedAt is since when the replica that answers is elected. */
  electedAt: string;
  /** RemembersSince is since when it knows what was transferred, where it was filled from Prometheus; absent where that is ElectedAt. */
  remembersSince?: string;
  policy: PolicyState;
  members: MemberStates;
  images: Counts;
  transfers: TransferSummary;
  rollouts: RolloutSummary;
  failing: FailingSummary;
  /** Attention is what waits for a person. */
  attention: AttentionSummary;
  /** CanGo is the newest complete PruneReport; absent for none. */
  canGo?: PruneSummary;
}

/** TargetCounts counts the images of an ImagePrune by state. */
export interface TargetCounts {
  total: number;
  waiting: number;
  pending: number;
  pruned: number;
  skipped: number;
  undone: number;
  unknown: number;
}

/** TargetSummary describes an image that was not pruned. */
export interface TargetSummary {
  /** cluster is the name of the MemberCluster; empty for a name in spec.images that the report has in none. */
  cluster: string;
  namespace: string;
  name: string;
  state: PruneState;
  reason?: string;
  message?: string;
}

/** Topic is a part of the fleet that changed. */
export type Topic = "images" | "members" | "policy" | "prunes" | "rollouts" | "transfers";

/** Transfer is an import that runs, or an image that waits. */
export interface Transfer {
  cluster: string;
  namespace: string;
  name: string;
  /** Source is the group of sources; absent if the member does not tell. */
  source?: string;
  /** Unknown is why it may have ended or started since; empty if it has not. */
  unknown?: string;
  /** BytesDone of Bytes; the latter is absent if unknown. */
  bytesDone?: number;
  bytes?: number;
  atMost?: boolean;
  /** BytesPerSecond of late; absent if unknown. */
  bytesPerSecond?: number;
  /** Slow: it has less than half the rate of the slowest fifth from its source. */
  slow?: boolean;
  startedAt?: string;
  queuedAt?: string;
  /** Attempt of MaxAttempts that runs. */
  attempt?: number;
  maxAttempts?: number;
  /** Position in the member's queue, from 1; absent for an import that runs. */
  position?: number;
  priority?: number;
  /** NotBefore is the end of its backoff. */
  notBefore?: string;
  /** Reason why it waits. */
  reason?: Reason;
  /** References is how many machines need the image; absent if unknown. */
  references?: number;
  /** Expected is when it will be ready. */
  expected?: Estimate;
}

/** TransferBudget is a budget, and what is used of it. */
export interface TransferBudget {
  /** Name of the group of sources; empty for the fleet. */
  name?: string;
  /** Limit is the fleet-wide limit; absent for none. */
  limit?: number;
  /** Used is how many imports run, as members report. */
  used: number;
  usedAtLeast?: boolean;
  /** Held is how many slots the budget counts as taken, and Reserved those of them that silent members may be using. */
  held?: number;
  reserved?: number;
  /** Waiting images in WaitingMembers members are next in their queues, and from this source. */
  waiting: number;
  waitingMembers: number;
  waitingAtLeast?: boolean;
  /** BytesPerSecond of the imports whose rate is known; absent where no member tells. */
  bytesPerSecond?: number;
  /** Bytes24h were downloaded in the last 24 hours, or since RemembersSince, or ElectedAt. */
  bytes24h?: number;
  /** Trend is bytes per second over the last hour, in TrendPoints parts. */
  trend?: (number | null)[];
  /** UnknownMembers of these members it is not known what they download. */
  unknownMembers?: number;
}

/** TransferQueued: images that wait for one. */
export const TransferQueued = "queued";

/** TransferRunning: imports that hold a slot. */
export const TransferRunning = "running";

/** TransferSummary is what the fleet downloads. */
export interface TransferSummary {
  /** Fleet is the budget of the whole fleet, and Sources those of its groups of sources, in the policy's order, with SourceOther at the end. */
  fleet: TransferBudget;
  sources: TransferBudget[];
  /** Queued is how many images wait for a slot, in QueuedMembers members. */
  queued: number;
  queuedMembers: number;
  oldestQueuedAt?: string;
  /** ReservedUntil is until when the last slot is reserved for silent members. */
  reservedUntil?: string;
}

/** Transfers are the imports that run and the images that wait, over all members. */
export interface Transfers {
  /** Running and Queued are the first that match, of RunningTotal and QueuedTotal. */
  running: Transfer[];
  queued: Transfer[];
  runningTotal: number;
  queuedTotal: number;
  /** Unlisted images wait behind those that their members list. */
  unlisted?: number;
  /** UnknownMembers of these members it is not known what they import now. */
  unknownMembers?: UnknownMember[];
  /** UnknownMembersTotal is how many there are; UnknownMembers are the first. */
  unknownMembersTotal?: number;
}

/** TransfersByCluster: by cluster, namespace and name. */
export const TransfersByCluster = "cluster";

/** TransfersByExpected: what is expected first. */
export const TransfersByExpected = "expected";

/** TransfersByImage: by namespace, name and cluster. */
export const TransfersByImage = "image";

/** TransfersByOldest: what started, or waits, for longest. */
export const TransfersByOldest = "oldest";

/** TransfersByRate: the fastest first. */
export const TransfersByRate = "rate";

/** TrendPoints is how many points a trend has. */
export const TrendPoints = 8;

export interface TypeMeta {
  kind?: string;
  apiVersion?: string;
}

/** UnknownCluster is a cluster that nothing current is known about. */
export interface UnknownCluster {
  cluster: string;
  reason: string;
  message?: string;
}

/** UnknownMember is a member that may have more than is known of it, and the reason. */
export interface UnknownMember {
  member: string;
  reason: string;
}

export const UnknownPathMessage = "this API has no such path";

/** VMDiskImageSpec says which disk image the cluster must have. */
export interface VMDiskImageSpec {
  /** name of the disk for people. */
  name: string;
  /** sourceType says how url is read: s3, http, gcs, registry, or blank for an empty disk; dataSource uses what a CDI DataSource of the cluster points at. */
  sourceType: SourceType;
  /** url of the image. */
  url?: string;
  /** checksum of the file at url as algorithm:hex, with md5, sha1, sha256 or sha512. */
  checksum?: string;
  /** secretRef names a Secret in the image's namespace with the credentials for the source, in CDI's format: keys accessKeyId and secretKey, or credentials.json for gcs. */
  secretRef?: string;
  /** certConfigMap names a ConfigMap in the image's namespace with the certificate authorities to trust for url. */
  certConfigMap?: string;
  /** extraHeaders are sent with each request for the image, each as "Name: value". */
  extraHeaders?: string[];
  /** secretExtraHeaders name Secrets in the image's namespace. */
  secretExtraHeaders?: string[];
  /** pullMethod says who pulls the container image of a registry source: pod for CDI's importer, node for the kubelet, with its credentials, mirrors and cache. */
  pullMethod?: PullMethod;
  /** storageClass that the image is stored in. */
  storageClass?: string;
  /** snapshotClass is the VolumeSnapshotClass of the snapshot that VMs are cloned from. */
  snapshotClass?: string;
  /** diskSize is the virtual size of the disk, from 1Mi to 64Ti. */
  diskSize: string;
  /** architecture of the machines that can boot the image: amd64, arm64 or s390x. */
  architecture?: Architecture;
  /** dataSource is the CDI DataSource whose image is used. */
  dataSource?: DataSourceReference;
  /** publish says where else the image can be found. */
  publish?: Publish;
  /** defaults of machines that boot the image, for those that find it by its DataSource. */
  defaults?: MachineDefaults;
  /** priority in the queue; higher goes first. */
  priority?: number;
  /** deleteUnreferencedAfter deletes the image once no VirtualMachine has referenced it for this long, as in 72h. */
  deleteUnreferencedAfter?: string;
}

/** Verdict is the kind of a row. */
export type Verdict = "candidate" | "kept" | "orphan" | "unknown";

/** VersionChanges is what differs from a version before. */
export interface VersionChanges {
  since: string;
  fields?: Change[];
  /** NotRecorded is why Fields are not known. */
  notRecorded?: string;
}

/** VersionInCluster is a version of a FleetDiskImage in a cluster. */
export interface VersionInCluster {
  version: string;
  state: ImageState;
  stale?: boolean;
  /** Reported is what the cluster has said of it. */
  reported?: ReportedImage;
}

/** VersionStatus is a version that was rolled out. */
export interface VersionStatus {
  version: string;
  /** namespace of the VMDiskImage in the members. */
  namespace: string;
  /** image is the name of the VMDiskImage in the members. */
  image: string;
  /** succeeded: at least one cluster has had it. */
  succeeded?: boolean;
  /** taken: an older FleetDiskImage has, or had, images of this name, and protects them. */
  taken?: boolean;
  /** revision of its source. */
  revision: string;
  /** since is when it became the current version. */
  since: string;
  /** template that the version was made from, without priority and deleteUnreferencedAfter; secrets are named, never copied. */
  template?: VMDiskImageSpec;
  /** overrides that the version had. */
  overrides?: RecordedOverrides;
  /** templateOmitted says why template is not recorded. */
  templateOmitted?: string;
}

/** Wave is a part of the fleet that gets the image before the next part. */
export interface Wave {
  /** name of the wave, as in canary. */
  name: string;
  /** clusterSelector selects MemberClusters of the placement by their labels. */
  clusterSelector: LabelSelector;
  /** maxConcurrency is how many clusters of the wave may be in progress at a time: a number, or a percentage of the wave as in 25%; at least 1. */
  maxConcurrency?: number | string;
  /** minSuccessTime is how long the wave must have been done before the next one starts, as in 1h. */
  minSuccessTime?: string;
  /** requireApproval stops the rollout before this wave until spec.approvals has an approval for it. */
  requireApproval?: boolean;
}

/** WaveStatus is the progress of a wave. */
export interface WaveStatus {
  name: string;
  clusters: ClusterCounts;
  /** doneAt is when the wave became done, by the hub's clock. */
  doneAt?: string;
  /** firstDoneAt keeps doneAt while clusters that were offline finish; the wave gets it back then. */
  firstDoneAt?: string;
  /** awaitedClusters are the first clusters, by name, that were in progress and offline at doneAt or firstDoneAt, and have not finished since: when they come back, minSuccessTime does not start again. */
  awaitedClusters?: string[];
}

/** Why is what the hub knows of one image of one member: its state, what runs and what goes first, and why the budget is what it is. */
export interface Why {
  cluster: string;
  namespace: string;
  name: string;
  /** Unknown is why all this may be out of date; empty if it is not. */
  unknown?: string;
  /** ReportedAt is when the hub received the report, by its own clock; absent where this replica has only seen what was stored when it was elected. */
  reportedAt?: string;
  /** Image as the member reports it; absent where it reports none of that name. */
  image?: ReportedImage;
  /** Planned: the member's plan has it. */
  planned: boolean;
  /** Activity is what the member imports and what waits; absent from agents that do not tell, and where nothing was imported yet. */
  activity?: WhyActivity;
  /** Position is how many images of the queue go first; absent if it does not wait for a slot, or waits behind those that the member lists. */
  position?: number;
  /** BehindHead: it waits behind those that the member lists. */
  behindHead?: boolean;
  /** Expected is when it will be ready. */
  expected?: Estimate;
  /** Budget is why as many imports may run as may. */
  budget: WhyBudget;
  /** Explanation says it in the words of kubectl ot why. */
  explanation?: WhyExplanation;
}

/** WhyActivity is what a member imports, and what waits for a slot. */
export interface WhyActivity {
  observedAt: string;
  active: ActiveEntry[];
  head: QueuedEntry[];
  queued: number;
  rates?: SourceRate[];
}

/** WhyBudget is the chain that leads to the number of imports that a member may run: policy, own ConfigMap, ledger, grant. */
export interface WhyBudget {
  /** PolicyConcurrency is what the fleet's policy plans, from PolicySource. */
  policyConcurrency?: number;
  policySource?: string;
  /** OwnConcurrency is the limit of the member's own policy ConfigMap; absent for none. */
  ownConcurrency?: number;
  /** Budget of the member's ledger: the smaller of the two, as far as it has acknowledged the plan. */
  budget?: number;
  slots?: number;
  /** Acknowledged: the ledger is written under the newest plan. */
  acknowledged: boolean;
  /** Transfers is the member's share of FleetConcurrency; absent without a fleet-wide budget. */
  transfers?: MemberTransfers;
  fleetConcurrency?: number;
  /** SourceConcurrency is the fleet-wide limit of the image's group of sources. */
  sourceConcurrency?: number;
}

/** WhyExplanation is what kubectl ot why says of an image. */
export interface WhyExplanation {
  verdict: WhyVerdict;
  /** State is phase and reason, as kubectl get shows them. */
  state: string;
  /** QueuedAt is since when it waits. */
  queuedAt?: string;
  /** Text is what it waits for, or its message. */
  text?: string;
  /** Budget says, part by part, why the budget is what it is. */
  budget?: string[];
  /** Sooner is what would bring it sooner. */
  sooner?: WhySooner;
}

/** WhySooner is what one more slot would bring. */
export interface WhySooner {
  concurrency: number;
  at?: string;
  seconds?: number;
  command: string;
}

/** WhyVerdict is why an image is where it is, in one word. */
export type WhyVerdict = "Failed" | "Ready" | "Unknown" | "Waits" | "WaitsForPerson";

export const WriteHeader = "Ot-Fleet";
