package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/approval"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
)

// Approval is what an approval of waves reaches, before and after it is given.
type Approval struct {
	render.Envelope
	Name    string `json:"name"`
	Version string `json:"version"`
	By      string `json:"by"`
	// Waves that this approval adds; Already are those that have one.
	Waves   []ApprovedWave `json:"waves"`
	Already []ApprovedWave `json:"already,omitempty"`
	// Clusters that start by it, and how many of these are offline.
	Clusters int32 `json:"clusters"`
	Offline  int32 `json:"offline"`
	// AtMostBytes is what they download together if no disk is compressed or empty: diskSize
	// for each.
	AtMostBytes int64 `json:"atMostBytes"`
	// AtATime is how many clusters of a wave import together, as in 25%; empty: all.
	AtATime string `json:"atATime,omitempty"`
	// ChangedSince is the version before; Changed its fields that differ. NotRecorded says
	// why they are not known.
	ChangedSince string   `json:"changedSince,omitempty"`
	Changed      []Change `json:"changed,omitempty"`
	NotRecorded  string   `json:"changesNotRecorded,omitempty"`
	// Before are the waves that come first.
	Before []Wave `json:"before,omitempty"`
	// Given: the approval is stored.
	Given bool `json:"given"`
	// Command that shows what follows.
	Command string `json:"command,omitempty"`

	now time.Time
}

// ApprovedWave is a wave with who approved it.
type ApprovedWave struct {
	Name string       `json:"name"`
	By   string       `json:"by,omitempty"`
	At   *metav1.Time `json:"at,omitempty"`
}

// Change is a field that differs between two versions.
type Change = readapi.Change

// ErrNotObserved: the status is of the spec before, as right after a publish or an approval.
var ErrNotObserved = errors.New("so what an approval reaches is unknown: try again in a moment")

// NewApproval decides what an approval adds. No waves: the current one; all: every wave that
// needs one. version is the one that the person means; empty: the current one.
func NewApproval(img *v1alpha1.FleetDiskImage, waves []string, all bool, version, by string, now time.Time) (*Approval, error) {
	if version != "" && version != img.Spec.Version {
		return nil, fmt.Errorf("FleetDiskImage %s is at version %s, not %s: an approval is of the version that is there", img.Name, img.Spec.Version, version)
	}
	if all {
		waves = nil
		for i := range img.Spec.Rollout.Waves {
			if w := &img.Spec.Rollout.Waves[i]; w.RequireApproval {
				waves = append(waves, w.Name)
			}
		}
		if len(waves) == 0 {
			return nil, fmt.Errorf("no wave of FleetDiskImage %s needs approval", img.Name)
		}
	}
	if !IsObserved(img) {
		return nil, fmt.Errorf("the hub has not looked at version %s of FleetDiskImage %s yet, %w", img.Spec.Version, img.Name, ErrNotObserved)
	}
	if len(waves) == 0 {
		if img.Status.Reason != v1alpha1.ReasonAwaitingApproval {
			return nil, fmt.Errorf("FleetDiskImage %s waits for no approval now: name the wave with --wave, of %s", img.Name, strings.Join(waveNames(img), ", "))
		}
		waves = []string{img.Status.CurrentWave}
	}
	a := &Approval{Envelope: render.NewEnvelope("Approval"), Name: img.Name, Version: img.Spec.Version, By: by, Waves: []ApprovedWave{}, now: now}
	for _, name := range waves {
		if !slices.Contains(waveNames(img), name) {
			return nil, fmt.Errorf("FleetDiskImage %s has no wave %s: it has %s", img.Name, name, strings.Join(waveNames(img), ", "))
		}
		if !approval.IsRequired(img, name) {
			return nil, fmt.Errorf("wave %s of FleetDiskImage %s needs no approval", name, img.Name)
		}
		if given := approval.FindApproval(img, name, img.Spec.Version); given != nil {
			a.Already = append(a.Already, ApprovedWave{name, given.By, given.At})
			continue
		}
		a.Waves = append(a.Waves, ApprovedWave{Name: name, By: by, At: &metav1.Time{Time: now.UTC().Truncate(time.Second)}})
		a.addReach(img, name)
	}
	a.AtMostBytes = int64(a.Clusters) * img.Spec.Template.DiskSize.Value()
	a.describeBefore(img, waves)
	a.describeChanges(img)
	return a, nil
}

func (a *Approval) addReach(img *v1alpha1.FleetDiskImage, wave string) {
	clusters, offline := approval.CountStarting(img, wave)
	a.Clusters += clusters
	a.Offline += offline
	a.AtATime = approval.AtATime(img, wave)
}

func (a *Approval) describeBefore(img *v1alpha1.FleetDiskImage, waves []string) {
	for _, w := range NewProgress(img, a.now).Waves {
		if slices.Contains(waves, w.Name) {
			return
		}
		a.Before = append(a.Before, w)
	}
}

func (a *Approval) describeChanges(img *v1alpha1.FleetDiskImage) {
	if changes := approval.ChangesSinceVersionBefore(img); changes != nil {
		a.ChangedSince, a.Changed, a.NotRecorded = changes.Since, changes.Fields, changes.NotRecorded
	}
}

// Draw draws what the approval reaches, or that it is given.
func (a *Approval) Draw(p *render.Page) {
	for _, w := range a.Already {
		p.Lines(render.Done.With("wave %s of %s %s is approved already, by %s", w.Name, a.Name, a.Version, w.By))
	}
	if len(a.Waves) == 0 {
		return
	}
	var names []string
	for _, w := range a.Waves {
		names = append(names, w.Name)
	}
	if a.Given {
		p.Lines(render.Done.With("approved %s %s for wave %s as %s", a.Name, a.Version, strings.Join(names, ", "), a.By))
		p.Command(a.Command)
		return
	}
	p.Line(render.Bold("APPROVE"), render.Text(" %s %s for wave %s as %s", a.Name, a.Version, strings.Join(names, ", "), a.By))
	pace := "all at a time"
	if a.AtATime != "" {
		pace = a.AtATime + " of a wave at a time"
	}
	p.Line(render.Text("  %s (%d offline), at most %s, %s", render.Count(a.Clusters, "cluster"), a.Offline, render.Bytes(a.AtMostBytes), pace))
	switch {
	case a.ChangedSince == "":
		p.Line(render.Text("  the first version"))
	case a.NotRecorded != "":
		p.Line(render.Text("  what has changed since %s is not recorded: %s", a.ChangedSince, a.NotRecorded))
	case len(a.Changed) == 0:
		p.Line(render.Text("  nothing but the version has changed since %s", a.ChangedSince))
	default:
		p.Line(render.Text("  changed since %s:", a.ChangedSince))
		for _, c := range a.Changed {
			p.Line(render.Text("    %s: %s → %s", c.Field, orNone(c.From), orNone(c.To)))
		}
	}
	for _, w := range a.Before {
		line := render.Line{render.Text("  %s: %d of %d ready, %d failed  ", w.Name, w.Clusters.Succeeded, w.Clusters.Total, w.Clusters.Failed+w.Clusters.TimedOut)}
		p.Line(append(line, (&Progress{now: a.now}).waveState(w)...)...)
	}
}

func orNone(text string) string {
	if text == "" {
		return "(none)"
	}
	return text
}

// PatchOperation is one of a JSON patch.
type PatchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// Patch adds the approvals to what is stored, if the FleetDiskImage is still the one that was
// shown: approvals of others that come meanwhile stay.
func (a *Approval) Patch(img *v1alpha1.FleetDiskImage) []PatchOperation {
	patch := []PatchOperation{
		{"test", "/metadata/uid", img.UID},
		{"test", "/metadata/generation", img.Generation},
	}
	if img.Spec.Approvals == nil {
		patch = append(patch, PatchOperation{"add", "/spec/approvals", []any{}})
	}
	for _, w := range a.Waves {
		patch = append(patch, PatchOperation{"add", "/spec/approvals/-", v1alpha1.Approval{Wave: w.Name, Version: a.Version, By: a.By, At: w.At}})
	}
	return patch
}

// WaveNames are the waves that were decided about. Another decision has to be about the same: the
// rollout may have gone on to another wave.
func (a *Approval) WaveNames() (names []string) {
	for _, w := range slices.Concat(a.Waves, a.Already) {
		names = append(names, w.Name)
	}
	return names
}

// IsSameRollout reports whether what was shown to a person has not changed: which version, of
// which source, goes where, and by whose leave.
func IsSameRollout(shown, now *v1alpha1.FleetDiskImage) bool {
	return shown.UID == now.UID && shown.Spec.Version == now.Spec.Version && shown.Spec.Template.Equal(&now.Spec.Template) &&
		shown.Spec.TargetNamespace == now.Spec.TargetNamespace && shown.Spec.Rollout.Paused == now.Spec.Rollout.Paused &&
		equality.Semantic.DeepEqual(shown.Spec.Rollout.Waves, now.Spec.Rollout.Waves)
}
