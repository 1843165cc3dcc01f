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
	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/shellword"
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
	// Sources that it covers, where spec.overrides give clusters others than the template's;
	// Unusable clusters have none: a label is missing, or the spec is invalid.
	Sources  []WaveSource `json:"sources,omitempty"`
	Unusable int          `json:"unusable,omitempty"`
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

// Names is the FleetDiskImage.
func (a *Approval) Names() []string { return []string{render.Reference("FleetDiskImage", a.Name)} }

// ApprovedWave is a wave with who approved it.
type ApprovedWave struct {
	Name string       `json:"name"`
	By   string       `json:"by,omitempty"`
	At   *metav1.Time `json:"at,omitempty"`
	// Sources are what is stored; none for that of the template alone.
	Sources []string `json:"sources,omitempty"`
	// Extends is who has approved other sources of the wave before.
	Extends string `json:"extends,omitempty"`
}

// Change is a field that differs between two versions.
type Change = readapi.Change

// ErrNotObserved: the status is of the spec before, as right after a publish or an approval.
var ErrNotObserved = errors.New("so what an approval reaches is unknown: try again in a moment")

// NewApproval decides what an approval adds. No waves: the current one; all: every wave that
// needs one. version is the one that the person means; empty: the current one. members are those of
// the fleet: their labels decide which sources they get.
func NewApproval(img *v1alpha1.FleetDiskImage, members []v1alpha1.MemberCluster, waves []string, all bool, version, by string, now time.Time) (*Approval, error) {
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
		return nil, fmt.Errorf("the hub has not processed version %s of FleetDiskImage %s yet, %w", img.Spec.Version, img.Name, ErrNotObserved)
	}
	if len(waves) == 0 {
		waiting := img.Status.CurrentWave
		if p := img.Status.PendingApproval; p != nil {
			waiting = p.Wave // also while others of the wave start
		} else if img.Status.Reason != v1alpha1.ReasonAwaitingApproval {
			return nil, waitsForNoApproval(img)
		}
		waves = []string{waiting}
	}
	a := &Approval{Envelope: render.NewEnvelope("Approval"), Name: img.Name, Version: img.Spec.Version, By: by, Waves: []ApprovedWave{}, now: now}
	for _, name := range waves {
		if !slices.Contains(waveNames(img), name) {
			return nil, fmt.Errorf("FleetDiskImage %s has no wave %s: it has %s", img.Name, name, strings.Join(waveNames(img), ", "))
		}
		if !approval.IsRequired(img, name) {
			return nil, fmt.Errorf("wave %s of FleetDiskImage %s needs no approval", name, img.Name)
		}
		if err := a.addWave(img, members, name); err != nil {
			return nil, err
		}
	}
	a.describeBefore(img, waves)
	a.describeChanges(img)
	return a, nil
}

// waitsForNoApproval names the waves that can be approved before it is their turn.
func waitsForNoApproval(img *v1alpha1.FleetDiskImage) error {
	names := slices.DeleteFunc(waveNames(img), func(name string) bool { return !approval.IsRequired(img, name) })
	if len(names) == 0 {
		return fmt.Errorf("no wave of FleetDiskImage %s needs approval", img.Name)
	}
	return fmt.Errorf("FleetDiskImage %s waits for no approval now: name the wave with --wave, of %s", img.Name, strings.Join(names, ", "))
}

// NeedsMembers reports whether an approval depends on the labels of the members.
func NeedsMembers(img *v1alpha1.FleetDiskImage) bool {
	return len(img.Spec.Overrides) > 0 || slices.ContainsFunc(img.Spec.Approvals, func(a v1alpha1.Approval) bool { return len(a.Sources) > 0 })
}

// addWave adds the approval of a wave, for what its clusters get that no approval covers yet.
func (a *Approval) addWave(img *v1alpha1.FleetDiskImage, members []v1alpha1.MemberCluster, wave string) error {
	given := approval.FindApproval(img, wave, img.Spec.Version)
	if !NeedsMembers(img) {
		// No cluster can get another source than the template's.
		if given != nil {
			a.Already = append(a.Already, ApprovedWave{Name: wave, By: given.By, At: given.At})
			return nil
		}
		clusters := a.addReach(img, wave)
		bytes, _ := override.NewDownloads(&img.Spec.Template, 0).EachBytes(&img.Spec.Template)
		a.AtMostBytes += int64(clusters) * bytes
		a.addEntry(approval.New(img, wave, nil, a.By, a.now), "")
		return nil
	}
	sources, unusable, err := listWaveSources(img, members, wave)
	if err != nil {
		return err
	}
	digests := make([]string, len(sources))
	for i := range sources {
		digests[i] = sources[i].Digest
	}
	pending := approval.PendingSources(img, wave, digests)
	a.Unusable += unusable
	if given != nil && len(pending) == 0 {
		a.Already = append(a.Already, ApprovedWave{Name: wave, By: given.By, At: given.At, Sources: given.Sources})
		return nil
	}
	if len(pending) > approval.MaxSources {
		return fmt.Errorf("wave %s of FleetDiskImage %s has %d sources, and an approval names at most %d: split the wave in spec.rollout.waves", wave, img.Name, len(pending), approval.MaxSources)
	}
	downloads := override.NewDownloads(&img.Spec.Template, 0)
	for _, digest := range pending {
		source := WaveSource{Digest: digest}
		if at := slices.Index(digests, digest); at >= 0 {
			source = sources[at]
			for range source.Clusters {
				downloads.Add(source.effective)
			}
		}
		a.Sources = append(a.Sources, source)
	}
	a.AtMostBytes += downloads.Total().Bytes
	a.addReach(img, wave)
	extends := ""
	if given != nil {
		extends = given.By
	}
	a.addEntry(approval.New(img, wave, pending, a.By, a.now), extends)
	return nil
}

func (a *Approval) addEntry(entry v1alpha1.Approval, extends string) {
	a.Waves = append(a.Waves, ApprovedWave{Name: entry.Wave, By: entry.By, At: entry.At, Sources: entry.Sources, Extends: extends})
}

func (a *Approval) addReach(img *v1alpha1.FleetDiskImage, wave string) (clusters int32) {
	clusters, offline := approval.CountStarting(img, wave)
	a.Clusters += clusters
	a.Offline += offline
	a.AtATime = approval.AtATime(img, wave)
	return clusters
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
	a.drawSources(p)
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
		line := render.Line{render.Text("  %s: %d of %d ready, %d failed  ", w.Name, w.Clusters.Succeeded, w.Clusters.Total, w.Clusters.AllFailed())}
		p.Line(append(line, (&Progress{now: a.now}).waveState(w)...)...)
	}
}

// maxShownSources is how many sources the screen names; the JSON has all.
const maxShownSources = 10

func (a *Approval) drawSources(p *render.Page) {
	for _, w := range a.Waves {
		if w.Extends != "" {
			p.Lines(render.Attention.With("wave %s: what %s has approved before becomes part of your approval", w.Name, w.Extends))
		}
	}
	if len(a.Sources) > 0 {
		p.Line(render.Text("  of %s:", render.Count(len(a.Sources), "source")))
	}
	for i := range a.Sources[:min(len(a.Sources), maxShownSources)] {
		p.Line(render.Text("    %s", a.Sources[i].describe()))
	}
	if more := len(a.Sources) - maxShownSources; more > 0 {
		p.Line(render.Text("    and %d more: -o json has all", more))
	}
	if a.Unusable > 0 {
		p.Lines(render.Attention.With("%s cannot begin, for a missing label or an invalid override: %s", render.Count(a.Unusable, "cluster"), shellword.FormatCommand("kubectl ot image where %s -o wide", a.Name)))
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
		entry := v1alpha1.Approval{Wave: w.Name, Version: a.Version, Sources: w.Sources, By: a.By, At: w.At}
		operation := PatchOperation{"add", "/spec/approvals/-", entry}
		// The list has one entry of a wave and version. The generation keeps its place.
		if at := slices.IndexFunc(img.Spec.Approvals, func(stored v1alpha1.Approval) bool { return stored.Wave == w.Name && stored.Version == a.Version }); at >= 0 {
			operation = PatchOperation{"replace", fmt.Sprintf("/spec/approvals/%d", at), entry}
		}
		patch = append(patch, operation)
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

// HasSameSources reports whether another decision about the same waves is about the same sources: a
// label of a cluster may have changed since it was shown.
func (a *Approval) HasSameSources(other *Approval) bool {
	return slices.EqualFunc(a.Sources, other.Sources, func(x, y WaveSource) bool { return x.Digest == y.Digest })
}

// IsSameRollout reports whether what was shown to a person has not changed: which version, of
// which source, goes where, and by whose leave.
func IsSameRollout(shown, now *v1alpha1.FleetDiskImage) bool {
	return shown.UID == now.UID && shown.Spec.Version == now.Spec.Version && shown.Spec.Template.Equal(&now.Spec.Template) &&
		equality.Semantic.DeepEqual(shown.Spec.Overrides, now.Spec.Overrides) && equality.Semantic.DeepEqual(shown.Spec.Placement, now.Spec.Placement) &&
		shown.Spec.TargetNamespace == now.Spec.TargetNamespace && shown.Spec.Rollout.Paused == now.Spec.Rollout.Paused &&
		equality.Semantic.DeepEqual(shown.Spec.Rollout.Waves, now.Spec.Rollout.Waves)
}
