// Package status decides what the first screen says: how the fleet is, what moves, what
// needs a person and what can go.
package status

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

// Snapshot is what the hub's kinds say.
type Snapshot struct {
	Now     time.Time
	Hub     string
	Members []v1alpha1.MemberCluster
	Images  []v1alpha1.FleetDiskImage
	Reports []v1alpha1.PruneReport
	Prunes  []v1alpha1.ImagePrune
	// PrunesUnread says why Prunes could not be read.
	PrunesUnread string
	// Summary of the read API; nil where it could not be asked, and Unread says why.
	Summary *readapi.Summary
	// Selected: not all clusters are in Members; those of Summary are.
	Selected bool
	// NamesAll: the screen names all clusters, rollouts and failed images.
	NamesAll bool
	Unread   string
	// Failing and Unknown: those clusters, rollouts and images alone are listed.
	Failing, Unknown bool
}

// Status is the answer of kubectl ot status.
type Status struct {
	render.Envelope
	ObservedAt metav1.Time `json:"observedAt"`
	Hub        string      `json:"hub"`
	// Clusters by how they are; each is counted once.
	Clusters Clusters `json:"clusters"`
	// Only says what of clusters, rollouts and images is listed: failing, unknown; all where it is absent.
	// The clusters of the other kind are counted.
	Only             []string `json:"only,omitempty"`
	FailingNotListed int      `json:"failingNotListed,omitempty"`
	UnknownNotListed int      `json:"unknownNotListed,omitempty"`
	// Slots of the fleet, or of all clusters that report.
	Slots Slots `json:"slots"`
	// Sources are the groups of sources; absent where the read API could not be asked.
	Sources []Source `json:"sources,omitempty"`
	// PolicyProblem says why the fleet's policy is not in force as it is written.
	PolicyProblem string `json:"policyProblem,omitempty"`
	// PolicyContradiction says for which members the policy in force is not valid.
	PolicyContradiction string `json:"policyContradiction,omitempty"`
	// PolicyUnread: the hub has not read the policy yet, as right after its start.
	PolicyUnread bool `json:"policyUnread,omitempty"`
	// Unread says why the read API could not be asked.
	Unread   string    `json:"unread,omitempty"`
	Rollouts []Rollout `json:"rollouts"`
	// RolloutsDone counts those that the screen does not list.
	RolloutsDone int           `json:"rolloutsDone"`
	Failed       []FailedImage `json:"failedImages"`
	// FailedTotal counts those too that Failed, the first of each cluster, does not list.
	FailedTotal int32 `json:"failedImagesTotal"`
	// Prunable is of the newest complete PruneReport; absent if there is none.
	Prunable *Prunable `json:"prunable,omitempty"`
	// Schedules are the PruneReports that create no report until somebody corrects them.
	Schedules []Schedule `json:"stalledSchedules,omitempty"`
	// Command that shows how to begin; set while there is no cluster.
	Command string `json:"command,omitempty"`

	now time.Time
	// namesAll: the screen leaves nothing out.
	namesAll bool
	// isWrong and isUnknown are about all clusters and rollouts, listed or not.
	isWrong, isUnknown bool
}

// Clusters counts clusters, and names those that are not well.
type Clusters struct {
	Total       int       `json:"total"`
	Ready       int       `json:"ready"`
	NotReady    []Cluster `json:"notReady,omitempty"`
	Failing     []Cluster `json:"failing,omitempty"`
	Silent      []Cluster `json:"silent,omitempty"`
	Unknown     []Cluster `json:"neverReported,omitempty"`
	Quarantined []Cluster `json:"quarantined,omitempty"`
}

// Cluster is one that is not well.
type Cluster struct {
	Name    string       `json:"name"`
	Since   *metav1.Time `json:"since,omitempty"`
	Message string       `json:"message,omitempty"`

	failed int32 // images
}

// Slots are imports at a time.
type Slots struct {
	Used   int32 `json:"used"`
	Budget int32 `json:"budget"`
	Queued int32 `json:"queued"`
	// Limit is the fleet's; with it Used is of the whole fleet. Absent where there is none, or where the
	// read API could not be asked.
	Limit       *int64 `json:"limit,omitempty"`
	UsedAtLeast bool   `json:"usedAtLeast,omitempty"`
	// Held is what the fleet's budget counts as taken, and Reserved what of it silent clusters may be
	// using. Both are absent without such a budget.
	Held     *int32 `json:"held,omitempty"`
	Reserved *int64 `json:"reserved,omitempty"`
}

// Source is a group of sources and what is downloaded from it.
type Source struct {
	Name string `json:"name"`
	Used int    `json:"used"`
	// Limit of imports at a time in the whole fleet; absent for none.
	Limit *int64 `json:"limit,omitempty"`
	// BytesPerSecond and Bytes24h are absent where no cluster tells.
	BytesPerSecond *int64         `json:"bytesPerSecond,omitempty"`
	Bytes24h       *int64         `json:"bytes24h,omitempty"`
	Trend          readapi.Values `json:"trend,omitempty"`
	Waiting        int            `json:"waiting"`
	WaitingMembers int            `json:"waitingClusters"`
}

// Rollout is the rollout of one FleetDiskImage.
type Rollout struct {
	Name    string                `json:"name"`
	Version string                `json:"version"`
	Phase   v1alpha1.RolloutPhase `json:"phase,omitempty"`
	Reason  string                `json:"reason,omitempty"`
	Message string                `json:"message,omitempty"`
	Wave    string                `json:"wave,omitempty"`
	// Clusters are absent while the status is about the spec before.
	Clusters   *v1alpha1.ClusterCounts `json:"clusters,omitempty"`
	ExpectedAt *metav1.Time            `json:"expectedAt,omitempty"`
	// Command that goes on, where a person is waited for.
	Command string `json:"command,omitempty"`
	Stalled bool   `json:"stalled,omitempty"`
}

// FailedImage is an image that failed in a cluster.
type FailedImage struct {
	Cluster   string          `json:"cluster"`
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	Reason    v1alpha1.Reason `json:"reason,omitempty"`
	Message   string          `json:"message,omitempty"`
	Command   string          `json:"command"`
}

// Schedule is a PruneReport that cannot create reports.
type Schedule struct {
	Name    string `json:"name"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	Command string `json:"command"`
}

// Prunable is what a PruneReport says can go, without what was pruned since, unless Unread says that this is
// not known.
type Prunable struct {
	Report      string      `json:"report"`
	Images      int32       `json:"images"`
	Bytes       int64       `json:"bytes"`
	Unknown     int32       `json:"unknownClusters"`
	CompletedAt metav1.Time `json:"completedAt"`
	Command     string      `json:"command"`
	Unread      string      `json:"unread,omitempty"`
}

// New decides what the screen says.
func New(s Snapshot) *Status {
	st := &Status{Envelope: render.NewEnvelope("Status"), ObservedAt: metav1.NewTime(s.Now), Hub: s.Hub, Rollouts: []Rollout{}, Failed: []FailedImage{}, now: s.Now, namesAll: s.NamesAll}
	slices.SortFunc(s.Members, func(a, b v1alpha1.MemberCluster) int { return strings.Compare(a.Name, b.Name) })
	for i := range s.Members {
		st.addMember(&s.Members[i])
	}
	if len(s.Members) == 0 {
		st.Command = "kubectl ot join push NAME --member CONTEXT"
	}
	slices.SortFunc(s.Images, func(a, b v1alpha1.FleetDiskImage) int { return strings.Compare(a.Name, b.Name) })
	for i := range s.Images {
		r := newRollout(&s.Images[i])
		st.Rollouts = append(st.Rollouts, r)
		if r.rank() == rankDone {
			st.RolloutsDone++
		}
	}
	st.addReports(s.Reports, s.Prunes)
	if st.Prunable != nil && s.PrunesUnread != "" {
		st.Prunable.Unread = "What was pruned since the report is not left out: " + s.PrunesUnread
	}
	st.Unread = s.Unread
	if s.Summary != nil {
		st.addSummary(s.Summary, s.Selected)
	}
	st.judgeFleet()
	if s.Failing || s.Unknown {
		st.listOnly(s.Failing, s.Unknown)
	}
	return st
}

func (st *Status) addMember(m *v1alpha1.MemberCluster) {
	st.Clusters.Total++
	failed := m.Status.CountFailedImages()
	c := Cluster{Name: m.Name, failed: failed}
	if ready := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionReady); ready != nil && ready.Status != metav1.ConditionTrue {
		c.Message, c.Since = ready.Message, &ready.LastTransitionTime
	}
	if m.Status.Images != nil && m.Status.SilentSince == nil {
		st.Slots.Queued += m.Status.Images.Queued
	}
	into := &st.Clusters.NotReady
	switch {
	case m.Spec.Quarantine != nil:
		into, c.Message = &st.Clusters.Quarantined, m.Spec.Quarantine.Reason
	case m.Status.LastReport == nil && !meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionStalled): // otherwise a person has to act
		into, c.Since = &st.Clusters.Unknown, &m.CreationTimestamp
	case m.Status.SilentSince != nil:
		into, c.Since = &st.Clusters.Silent, m.Status.SilentSince
	case failed > 0:
		into = &st.Clusters.Failing
	case meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionReady):
		into = nil
	}
	if into == nil {
		st.Clusters.Ready++
	} else {
		*into = append(*into, c)
	}
	if m.Status.SlotsUsed != nil && m.Status.Budget != nil && m.Status.SilentSince == nil {
		st.Slots.Used += *m.Status.SlotsUsed
		st.Slots.Budget += *m.Status.Budget
	}
	if t := m.Status.Transfers; t != nil {
		if st.Slots.Held == nil {
			st.Slots.Held = new(int32)
		}
		*st.Slots.Held += t.Held
	}
	st.FailedTotal += failed
	for _, f := range m.Status.Failing {
		st.Failed = append(st.Failed, FailedImage{
			Cluster: m.Name, Namespace: f.Namespace, Name: f.Name, Reason: f.Reason, Message: f.Message,
			Command: shellword.FormatCommand("kubectl ot why image %s -n %s --cluster %s", f.Name, f.Namespace, m.Name),
		})
	}
}

func (st *Status) addSummary(s *readapi.Summary, selected bool) {
	if !s.Policy.Accepted {
		st.PolicyProblem, st.PolicyUnread = s.Policy.Message, s.Policy.Message == ""
	}
	for _, a := range s.Attention.Items {
		if a.Reason == "PolicyContradicted" {
			st.PolicyContradiction = a.Message
		}
	}
	if selected {
		return // its transfers are of all clusters
	}
	if fleet := s.Transfers.Fleet; fleet.Limit != nil {
		st.Slots.Used, st.Slots.UsedAtLeast, st.Slots.Limit, st.Slots.Reserved = int32(fleet.Used), fleet.UsedAtLeast, fleet.Limit, fleet.Reserved
		if fleet.Held != nil {
			st.Slots.Held = ptr.To(int32(*fleet.Held))
		}
	}
	for _, b := range s.Transfers.Sources {
		st.Sources = append(st.Sources, Source{
			Name: b.Name, Used: b.Used, Limit: b.Limit, BytesPerSecond: b.BytesPerSecond, Bytes24h: b.Bytes24h, Trend: b.Trend,
			Waiting: b.Waiting, WaitingMembers: b.WaitingMembers,
		})
	}
}

func newRollout(i *v1alpha1.FleetDiskImage) Rollout {
	if !rollout.IsObserved(i) { // what the status says is of the spec before
		return Rollout{Name: i.Name, Version: i.Spec.Version}
	}
	r := Rollout{
		Name: i.Name, Version: i.Spec.Version, Phase: i.Status.Phase, Reason: i.Status.Reason, Message: i.Status.Message,
		Wave: i.Status.CurrentWave, Clusters: &i.Status.Clusters, ExpectedAt: i.Status.ExpectedAt,
		Stalled: meta.IsStatusConditionTrue(i.Status.Conditions, v1alpha1.ConditionStalled), Command: rollout.NextCommand(i),
	}
	if r.Stalled && r.Command == "" {
		r.Command = shellword.FormatCommand("kubectl ot why rollout %s", r.Name)
	}
	return r
}

// Ranks of rollouts, the one to look at first in front.
const (
	rankFailed = iota
	rankHeld
	rankMoving
	rankDone
)

func (r *Rollout) sign() render.Sign { return rollout.SignOf(r.Phase, r.Reason, r.Stalled) }

func (r *Rollout) rank() int {
	switch r.sign() {
	case render.Failed:
		return rankFailed
	case render.Attention:
		return rankHeld
	case render.Done:
		return rankDone
	default:
		return rankMoving
	}
}

func (st *Status) addReports(reports []v1alpha1.PruneReport, prunes []v1alpha1.ImagePrune) {
	for i := range reports {
		r := &reports[i]
		command := shellword.FormatCommand("kubectl ot prune review %s", r.Name)
		if r.Spec.Schedule != "" && meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionStalled) {
			st.Schedules = append(st.Schedules, Schedule{Name: r.Name, Reason: r.Status.Reason, Message: r.Status.Message, Command: command})
		}
		if r.Status.CompletedAt == nil || r.Status.Digest == "" {
			continue
		}
		if st.Prunable != nil && !r.Status.CompletedAt.After(st.Prunable.CompletedAt.Time) {
			continue
		}
		left := r.CandidatesLeft(prunes)
		st.Prunable = &Prunable{
			Report: r.Name, Images: left.Count, Bytes: left.Bytes, Unknown: r.Status.Clusters.Unknown,
			CompletedAt: *r.Status.CompletedAt, Command: command,
		}
	}
}

// judgeFleet records what the exit code goes by.
func (st *Status) judgeFleet() {
	isStalled := slices.ContainsFunc(st.Rollouts, func(r Rollout) bool { return r.rank() == rankFailed })
	failing, unknown := st.countClusters()
	st.isWrong = st.FailedTotal > 0 || isStalled || len(st.Schedules) > 0 || st.PolicyProblem != "" || failing > 0
	st.isUnknown = st.PolicyUnread || unknown > 0
}

// countClusters counts those that fail and those that are unknown.
func (st *Status) countClusters() (failing, unknown int) {
	return len(st.Clusters.Failing) + len(st.Clusters.NotReady) + len(st.Clusters.Quarantined), len(st.Clusters.Silent) + len(st.Clusters.Unknown)
}

// listOnly drops what neither fails nor is unknown, as it is asked for. An unknown cluster whose images
// failed fails, too.
func (st *Status) listOnly(failing, unknown bool) {
	allFailing, allUnknown := st.countClusters()
	c := &st.Clusters
	if failing {
		st.Only = append(st.Only, "failing")
	} else {
		c.NotReady, c.Failing, c.Quarantined = nil, nil, nil
		st.Schedules = nil
	}
	if unknown {
		st.Only = append(st.Only, "unknown")
	} else {
		mayBeWell := func(c Cluster) bool { return c.failed == 0 }
		c.Silent, c.Unknown = slices.DeleteFunc(c.Silent, mayBeWell), slices.DeleteFunc(c.Unknown, mayBeWell)
	}
	listedFailing, listedUnknown := st.countClusters()
	st.FailingNotListed, st.UnknownNotListed = allFailing-listedFailing, allUnknown-listedUnknown
	listed := map[string]bool{}
	st.FailedTotal = 0
	for _, group := range st.clusterGroups() {
		for _, c := range group.clusters {
			listed[c.Name] = true
			st.FailedTotal += c.failed
		}
	}
	st.Failed = slices.DeleteFunc(st.Failed, func(f FailedImage) bool { return !listed[f.Cluster] })
	st.Rollouts = slices.DeleteFunc(st.Rollouts, func(r Rollout) bool {
		waitsForUnknown := r.Clusters != nil && r.Clusters.Deferred > 0
		isListed := failing && r.rank() == rankFailed || unknown && waitsForUnknown
		return !isListed
	})
	st.RolloutsDone, st.Prunable = 0, nil
}

// ExitCode is No where something is wrong, Unknown where clusters or the policy are: listed or not.
func (st *Status) ExitCode(allowUnknown bool) exit.Code {
	switch {
	case st.isWrong:
		return exit.No
	case st.isUnknown && !allowUnknown:
		return exit.Unknown
	default:
		return exit.Yes
	}
}
