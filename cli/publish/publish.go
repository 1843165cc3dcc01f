// Package publish decides what kubectl ot image publish writes: a version of a FleetDiskImage
// by server-side apply, and what it costs.
package publish

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/ownership"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

// Request is what flags ask for. Empty fields leave what is stored.
type Request struct {
	Name, Version, URL, Checksum, Type, Size, TargetNamespace string
	// Selector is nil without -l; an empty one selects all clusters.
	Selector *string
	Clusters []string
	// Waves as name=selector.
	Waves []string
	Disk  *Disk
	// SourceBytes is what the source says that a download has; 0 where it does not.
	SourceBytes int64
	// Manifest is a FleetDiskImage in YAML or JSON; flags come before what it says.
	Manifest []byte
}

// Plan is what is written, and what that changes.
type Plan struct {
	render.Envelope
	Name        string `json:"name"`
	Created     bool   `json:"created"`
	FromVersion string `json:"fromVersion,omitempty"`
	Version     string `json:"version"`
	Disk        *Disk  `json:"disk,omitempty"`
	// SourceBytes is what the source says that a download has; 0 where it was not asked.
	SourceBytes int64            `json:"sourceBytes,omitempty"`
	Changes     []rollout.Change `json:"changes"`
	// Clusters are those that the placement selects, Total all of the fleet.
	Clusters int `json:"clusters"`
	Total    int `json:"fleet"`
	// BytesEach is what a cluster downloads; AtMost: it is diskSize, since no size of the
	// download is known. Bytes is for all clusters.
	BytesEach int64 `json:"bytesEach"`
	AtMost    bool  `json:"atMost,omitempty"`
	Bytes     int64 `json:"bytes"`
	// Notes are what else the author has to know.
	Notes []string `json:"notes,omitempty"`
	// Written: it is stored. DryRun: client or server.
	Written bool   `json:"written"`
	DryRun  string `json:"dryRun,omitempty"`

	// Object to apply.
	Object *unstructured.Unstructured `json:"-"`
}

// NewPlan decides what to apply. stored is nil where there is no FleetDiskImage of that name.
// What kubectl ot has applied before is applied again: what an apply leaves out is removed.
func NewPlan(r Request, stored *v1alpha1.FleetDiskImage, members []v1alpha1.MemberCluster) (*Plan, error) {
	spec, err := baseSpec(r, stored)
	if err != nil {
		return nil, err
	}
	if err := r.apply(spec, stored); err != nil {
		return nil, err
	}
	desired, err := decode(spec)
	if err != nil {
		return nil, err
	}
	p := &Plan{Envelope: render.NewEnvelope("Publication"), Name: r.Name, Version: desired.Version, Created: stored == nil, Disk: r.Disk, Changes: []rollout.Change{}}
	object := map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "FleetDiskImage", "metadata": map[string]any{"name": r.Name}, "spec": spec,
	}
	if stored != nil {
		p.FromVersion = stored.Spec.Version
		p.Changes = append(p.Changes, rollout.Diff(&stored.Spec.Template, &desired.Template)...)
		p.addNotes(stored, desired)
	}
	p.Object = &unstructured.Unstructured{Object: object}
	placement := &desired.Placement
	if spec["placement"] == nil && stored != nil {
		placement = &stored.Spec.Placement
	}
	if err := p.countClusters(placement, members); err != nil {
		return nil, err
	}
	p.addBytes(r.SourceBytes, desired)
	return p, nil
}

// baseSpec is what is applied beside what flags say.
func baseSpec(r Request, stored *v1alpha1.FleetDiskImage) (map[string]any, error) {
	spec := map[string]any{}
	if stored != nil {
		live, err := toMap(stored.Spec)
		if err != nil {
			return nil, err
		}
		owned := ownership.AppliedFields(stored)
		for name, value := range live {
			// approvals are written by the approvers, one by one
			if (owned[name] || name == "template" || name == "targetNamespace" || name == "version") && name != "approvals" {
				spec[name] = value
			}
		}
	}
	if len(r.Manifest) == 0 {
		return spec, nil
	}
	var manifest struct {
		Kind     string            `json:"kind"`
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     map[string]any    `json:"spec"`
	}
	switch err := yaml.Unmarshal(r.Manifest, &manifest); {
	case err != nil:
		return nil, fmt.Errorf("-f: %w", err)
	case manifest.Kind != "" && manifest.Kind != "FleetDiskImage":
		return nil, fmt.Errorf("-f: has a %s, and must have a FleetDiskImage", manifest.Kind)
	case manifest.Metadata.Name != "" && manifest.Metadata.Name != r.Name:
		return nil, fmt.Errorf("-f: has FleetDiskImage %s, and %s is to be published", manifest.Metadata.Name, r.Name)
	case manifest.Spec == nil:
		return nil, errors.New("-f: has no spec")
	}
	maps.Copy(spec, manifest.Spec)
	return spec, nil
}

// apply writes what flags say into a spec.
func (r *Request) apply(spec map[string]any, stored *v1alpha1.FleetDiskImage) error {
	template, _ := spec["template"].(map[string]any)
	if template == nil {
		template = map[string]any{}
		spec["template"] = template
	}
	set := func(into map[string]any, field, value string) {
		if value != "" {
			into[field] = value
		}
	}
	checksum, size := r.Checksum, r.Size
	if r.Disk != nil {
		if checksum == "" {
			checksum = r.Disk.Checksum
		} else if checksum != r.Disk.Checksum {
			return fmt.Errorf("--checksum %s is not that of %s, %s: publish the file that was uploaded", checksum, r.Disk.Path, r.Disk.Checksum)
		}
		if size == "" {
			size = r.Disk.DiskSize()
		}
	}
	if r.URL != "" && checksum == "" && template["checksum"] != nil && template["url"] != r.URL && len(r.Manifest) == 0 {
		template["checksum"] = "" // that of the version before
	}
	sourceType := r.Type
	if sourceType == "" && template["sourceType"] == nil {
		sourceType = guessType(r.URL)
	}
	if sourceType == "" {
		sourceType, _ = template["sourceType"].(string)
	}
	if sourceType != string(v1alpha1.SourceHTTP) && r.Checksum == "" {
		checksum = "" // only http sources take one
	}
	set(spec, "version", r.Version)
	set(spec, "targetNamespace", r.TargetNamespace)
	set(template, "url", r.URL)
	set(template, "checksum", checksum)
	set(template, "sourceType", sourceType)
	if size != "" {
		quantity, err := resource.ParseQuantity(size)
		if err != nil {
			return fmt.Errorf("--size %s: must be a size, as in 24Gi", size)
		}
		if r.Disk != nil && quantity.Value() < r.Disk.VirtualBytes {
			return fmt.Errorf("--size %s: the disk in %s has %s", size, r.Disk.Path, render.Bytes(r.Disk.VirtualBytes))
		}
		template["diskSize"] = size
	}
	if template["name"] == nil {
		template["name"] = r.Name
	}
	if err := r.applyPlacement(spec); err != nil {
		return err
	}
	var missing []string
	need := func(flag string, has bool) {
		if !has {
			missing = append(missing, flag)
		}
	}
	need("--version", spec["version"] != nil && (r.Version != "" || len(r.Manifest) > 0))
	need("--url", template["url"] != nil || template["sourceType"] == "blank")
	need("--size or --file", template["diskSize"] != nil)
	need("--target-namespace", spec["targetNamespace"] != nil)
	need("-l or --clusters", stored != nil || spec["placement"] != nil)
	if len(missing) > 0 {
		return fmt.Errorf("FleetDiskImage %s needs %s", r.Name, strings.Join(missing, ", "))
	}
	return nil
}

// guessType returns the type of a source by its URL.
func guessType(url string) string {
	switch {
	case strings.HasPrefix(url, "docker://"), strings.HasPrefix(url, "oci-archive://"):
		return string(v1alpha1.SourceRegistry)
	case strings.HasPrefix(url, "gs://"):
		return string(v1alpha1.SourceGCS)
	default:
		return string(v1alpha1.SourceHTTP)
	}
}

func (r *Request) applyPlacement(spec map[string]any) error {
	if r.Selector != nil || len(r.Clusters) > 0 {
		placement := map[string]any{}
		if r.Selector != nil {
			selector, err := parseSelector("-l", *r.Selector)
			if err != nil {
				return err
			}
			placement["clusterSelector"] = selector
		}
		if len(r.Clusters) > 0 {
			placement["clusterNames"] = toAny(slices.Compact(slices.Sorted(slices.Values(r.Clusters))))
		}
		spec["placement"] = placement
	}
	if len(r.Waves) == 0 {
		return nil
	}
	var waves []any
	for _, text := range r.Waves {
		name, selector, ok := strings.Cut(text, "=")
		if !ok || name == "" || selector == "" {
			return fmt.Errorf("--wave %s: must be a name and a selector, as in canary=ring=canary", text)
		}
		parsed, err := parseSelector("--wave "+name, selector)
		if err != nil {
			return err
		}
		waves = append(waves, map[string]any{"name": name, "clusterSelector": parsed})
	}
	rolloutSpec, _ := spec["rollout"].(map[string]any)
	if rolloutSpec == nil {
		rolloutSpec = map[string]any{}
		spec["rollout"] = rolloutSpec
	}
	rolloutSpec["waves"] = waves
	return nil
}

func toAny(names []string) (list []any) {
	for _, name := range names {
		list = append(list, name)
	}
	return list
}

// parseSelector turns a selector as kubectl has it into one of the API.
func parseSelector(flag, text string) (map[string]any, error) {
	selector, err := metav1.ParseToLabelSelector(text)
	if err != nil {
		return nil, fmt.Errorf("%s %s: must be a label selector, as in region=nordics: %w", flag, text, err)
	}
	return toMap(selector)
}

func toMap(value any) (map[string]any, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encoding the spec: %w", err)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, fmt.Errorf("encoding the spec: %w", err)
	}
	return fields, nil
}

func decode(spec map[string]any) (*v1alpha1.FleetDiskImageSpec, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encoding the spec: %w", err)
	}
	decoded := &v1alpha1.FleetDiskImageSpec{}
	if err := json.Unmarshal(data, decoded); err != nil {
		return nil, fmt.Errorf("the spec is wrong: %w", err)
	}
	return decoded, nil
}

func (p *Plan) addNotes(stored *v1alpha1.FleetDiskImage, desired *v1alpha1.FleetDiskImageSpec) {
	sameRevision := stored.Spec.Template.Revision() == desired.Template.Revision()
	switch {
	case p.Version == p.FromVersion && len(p.Changes) == 0:
		p.Notes = append(p.Notes, "it is at this version already")
	case p.Version == p.FromVersion && !sameRevision:
		p.Notes = append(p.Notes, "the version stays and its source changes: clusters download it again, and approvals of this version end")
	case p.Version != p.FromVersion && sameRevision:
		p.Notes = append(p.Notes, "only the version changes: the new one has the same source")
	}
	if stored.Spec.Rollout.Paused {
		p.Notes = append(p.Notes, "the rollout is paused: kubectl ot rollout resume "+p.Name+" lets it begin")
	}
}

// countClusters counts the clusters that a placement selects.
func (p *Plan) countClusters(placement *v1alpha1.Placement, members []v1alpha1.MemberCluster) error {
	parsed, err := rollout.NewPlacement(placement)
	if err != nil {
		return err
	}
	p.Total = len(members)
	for i := range members {
		if parsed.Selects(&members[i]) {
			p.Clusters++
		}
	}
	if p.Clusters == 0 {
		p.Notes = append(p.Notes, "no cluster of the fleet is selected: nothing is downloaded until one is")
	}
	return nil
}

func (p *Plan) addBytes(sourceBytes int64, desired *v1alpha1.FleetDiskImageSpec) {
	switch p.SourceBytes = sourceBytes; {
	case p.Disk != nil:
		p.BytesEach = p.Disk.FileBytes
	case sourceBytes > 0:
		p.BytesEach = sourceBytes
	default:
		p.BytesEach, p.AtMost = desired.Template.DiskSize.Value(), true
	}
	p.Bytes = p.BytesEach * int64(p.Clusters)
}

// Draw draws what changes and what it costs.
func (p *Plan) Draw(page *render.Page) {
	if d := p.Disk; d != nil {
		page.Lines(render.Done.With("%s: %s, %s virtual, %s to download, %s", d.Path, d.Format, render.Bytes(d.VirtualBytes), render.Bytes(d.FileBytes), d.Checksum))
	}
	if p.SourceBytes > 0 {
		page.Lines(render.Done.With("the source answers: %s", render.Bytes(p.SourceBytes)))
	}
	what := p.Version
	if p.FromVersion != "" {
		what = p.FromVersion + " → " + p.Version
	}
	atMost := ""
	if p.AtMost {
		atMost = "at most "
	}
	sign, tense := render.Waiting, "would be"
	if p.Written {
		sign, tense = render.Done, "is"
	}
	page.Lines(sign.With("FleetDiskImage/%s %s %s, for %d of %s: %s%s (%s each)", p.Name, tense, what, p.Clusters, render.Count(p.Total, "cluster"), atMost, render.Bytes(p.Bytes), render.Bytes(p.BytesEach)))
	for _, c := range p.Changes {
		page.Line(render.Text("    %s: %s → %s", c.Field, orNone(c.From), orNone(c.To)))
	}
	for _, note := range p.Notes {
		page.Lines(render.Attention.With("%s", note))
	}
	if p.DryRun != "" {
		page.Line(render.Text("dry run (%s): nothing is written", p.DryRun))
	}
}

func orNone(text string) string {
	if text == "" {
		return "(none)"
	}
	return text
}

// Names are for -o name.
func (p *Plan) Names() []string { return []string{"fleetdiskimage.pelotech.ot/" + p.Name} }
