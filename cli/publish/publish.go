// Package publish decides what kubectl ot image publish writes: a version of a FleetDiskImage
// by server-side apply, and what it costs.
package publish

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/approval"
	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/ownership"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/api/yamlalias"
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
	// Downloads are those of the clusters that get another revision, by host: others download
	// nothing.
	Downloads []override.Download `json:"downloads"`
	// Waiting clusters cannot begin: a label is missing, or spec.overrides make an invalid image.
	Waiting []WaitingCluster `json:"waiting,omitempty"`
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
	live, err := liveSpec(stored)
	if err != nil {
		return nil, err
	}
	spec, err := r.baseSpec(live, stored)
	if err != nil {
		return nil, err
	}
	dropsChecksum, err := r.apply(spec, live, stored)
	if err != nil {
		return nil, err
	}
	merged := merge(live, spec)
	if template, ok := merged["template"].(map[string]any); ok && dropsChecksum {
		delete(template, "checksum")
	}
	desired, err := decode(merged)
	if err != nil {
		return nil, err
	}
	p := &Plan{Envelope: render.NewEnvelope("Publication"), Name: r.Name, Version: desired.Version, Created: stored == nil, Disk: r.Disk, Changes: []rollout.Change{}}
	metadata := map[string]any{"name": r.Name}
	if stored != nil {
		// Invariant: what others write between the read and the apply is not written back.
		metadata["resourceVersion"] = stored.ResourceVersion
		p.FromVersion = stored.Spec.Version
		p.Changes = append(approval.Diff(&stored.Spec.Template, &desired.Template), approval.DiffOverrides(stored.Spec.Overrides, desired.Overrides)...)
		p.Changes = append(p.Changes, diffRest(live, merged)...)
		p.addNotes(stored, desired)
	}
	p.Object = &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "FleetDiskImage", "metadata": metadata, "spec": spec,
	}}
	p.SourceBytes = r.SourceBytes
	p.compareSource(desired)
	p.noteAbsentClusters(&desired.Placement, members)
	if err := p.countDownloads(stored, desired, members); err != nil {
		return nil, err
	}
	return p, nil
}

// Fields are those that the plan writes, and that nobody else may own.
func (p *Plan) Fields() []string {
	fields := []string{"spec.version"}
	for _, c := range p.Changes {
		field, _, _ := strings.Cut(c.Field, ".")
		if strings.HasPrefix(field, "overrides[") {
			fields = append(fields, "spec.overrides")
			continue
		}
		if field != "placement" && field != "rollout" && field != "targetNamespace" && field != "retention" && field != "deletionPolicy" && field != "imageName" {
			field = "template." + field
		}
		fields = append(fields, "spec."+field)
	}
	return slices.Compact(fields)
}

// liveSpec is the stored spec, without values that are not set.
func liveSpec(stored *v1alpha1.FleetDiskImage) (map[string]any, error) {
	if stored == nil {
		return map[string]any{}, nil
	}
	return toMap(stored.Spec)
}

// merge returns what is stored once spec is applied: maps by field, all else as applied.
func merge(live, spec map[string]any) map[string]any {
	merged := map[string]any{}
	maps.Copy(merged, live)
	for name, value := range spec {
		below, isMap := value.(map[string]any)
		former, wasMap := merged[name].(map[string]any)
		if isMap && wasMap && name != "clusterSelector" {
			value = merge(former, below)
		}
		merged[name] = value
	}
	return merged
}

// diffRest returns the changes beside the template, each as JSON.
func diffRest(live, merged map[string]any) (changes []rollout.Change) {
	for _, field := range slices.Sorted(maps.Keys(merged)) {
		if field == "template" || field == "overrides" || field == "version" || field == "approvals" {
			continue
		}
		before, after := fieldsOf(live[field]), fieldsOf(merged[field])
		for _, name := range slices.Compact(slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(after))...)))) {
			if from, to := encode(before[name]), encode(after[name]); from != to {
				changes = append(changes, rollout.Change{Field: strings.TrimSuffix(field+"."+name, "."), From: from, To: to})
			}
		}
	}
	return changes
}

// fieldsOf returns the fields of a map, and any other value under an empty name.
func fieldsOf(value any) map[string]any {
	if fields, ok := value.(map[string]any); ok {
		return fields
	}
	return map[string]any{"": value}
}

const maxShownValue = 200

func encode(value any) string {
	if value == nil {
		return ""
	}
	text, err := json.Marshal(value)
	if err != nil {
		return ""
	}
	return v1alpha1.SanitizeText(strings.Trim(string(text), `"`), maxShownValue)
}

// baseSpec is what is applied beside what flags say: what kubectl ot has applied before. Fields
// of others are left to them. approvals are given by approvers, one by one, and a pause is theirs
// who paused.
func (r *Request) baseSpec(live map[string]any, stored *v1alpha1.FleetDiskImage) (map[string]any, error) {
	spec := map[string]any{}
	if stored != nil {
		spec = appliedPart(live, stored, "spec", map[string]bool{"spec.approvals": true, "spec.rollout.paused": true, "spec.retry": true})
	}
	if len(r.Manifest) == 0 {
		return spec, nil
	}
	var manifest struct {
		Kind     string            `json:"kind"`
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     map[string]any    `json:"spec"`
	}
	if err := yamlalias.Check(r.Manifest); err != nil {
		return nil, fmt.Errorf("-f: %w", err)
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

// appliedPart returns the fields that kubectl ot has applied: those of spec, and of the maps in it.
func appliedPart(live map[string]any, stored *v1alpha1.FleetDiskImage, path string, except map[string]bool) map[string]any {
	part := map[string]any{}
	for name, value := range live {
		field := path + "." + name
		if except[field] || !ownership.IsApplied(stored, field) {
			continue
		}
		if below, ok := value.(map[string]any); ok && path == "spec" {
			applied := appliedPart(below, stored, field, except)
			if len(applied) == 0 {
				continue
			}
			value = applied
		}
		part[name] = value
	}
	return part
}

// apply writes what flags say into a spec. dropsChecksum: that of the former file goes.
func (r *Request) apply(spec, live map[string]any, stored *v1alpha1.FleetDiskImage) (dropsChecksum bool, err error) {
	template, _ := spec["template"].(map[string]any)
	if template == nil {
		template = map[string]any{}
		spec["template"] = template
	}
	former, _ := live["template"].(map[string]any)
	merged := merge(former, template)
	checksum, size, err := r.checkDisk()
	if err != nil {
		return false, err
	}
	sourceType, _ := merged["sourceType"].(string)
	if r.Type != "" || sourceType == "" {
		sourceType = cmp.Or(r.Type, guessType(r.URL))
		template["sourceType"] = sourceType
	}
	if sourceType != string(v1alpha1.SourceHTTP) && r.Checksum == "" {
		checksum = "" // only http sources take one
	}
	if r.URL != "" && checksum == "" && former["checksum"] != nil && merged["checksum"] == former["checksum"] && (former["url"] != r.URL || sourceType != string(v1alpha1.SourceHTTP)) {
		if others := ownership.OtherOwners(stored, "spec.template.checksum"); len(others) > 0 {
			return false, fmt.Errorf("--checksum of the new file is missing: the one that is stored is of the former file, and %s keeps it", strings.Join(others, ", "))
		}
		delete(template, "checksum")
		dropsChecksum = true
	}
	for _, flag := range []struct {
		into         map[string]any
		field, value string
	}{{spec, "version", r.Version}, {spec, "targetNamespace", r.TargetNamespace}, {template, "url", r.URL}, {template, "checksum", checksum}, {template, "diskSize", size}} {
		if flag.value != "" {
			flag.into[flag.field] = flag.value
		}
	}
	if merged["name"] == nil {
		template["name"] = r.Name
	}
	if err := r.applyPlacement(spec, live); err != nil {
		return false, err
	}
	if len(template) == 0 {
		delete(spec, "template")
	}
	return dropsChecksum, r.checkComplete(merge(live, spec))
}

// checkDisk returns the checksum and the size that flags and the file give.
func (r *Request) checkDisk() (checksum, size string, err error) {
	checksum, size = r.Checksum, r.Size
	var quantity resource.Quantity
	if size != "" {
		if quantity, err = resource.ParseQuantity(size); err != nil {
			return "", "", fmt.Errorf("--size %s: must be a size, as in 24Gi", size)
		}
	}
	switch d := r.Disk; {
	case d == nil:
		return checksum, size, nil
	case checksum != "" && checksum != d.Checksum:
		return "", "", fmt.Errorf("--checksum %s is not that of %s, %s: publish the file that was uploaded", checksum, d.Path, d.Checksum)
	case size != "" && quantity.Value() < d.VirtualBytes:
		return "", "", fmt.Errorf("--size %s: the disk in %s has %s", size, d.Path, render.Bytes(d.VirtualBytes))
	default:
		return d.Checksum, cmp.Or(size, d.DiskSize()), nil
	}
}

// checkComplete names the flags that a spec lacks.
func (r *Request) checkComplete(spec map[string]any) error {
	template, _ := spec["template"].(map[string]any)
	var missing []string
	for _, need := range []struct {
		flag string
		has  bool
	}{
		{"--version", r.Version != "" || len(r.Manifest) > 0 && spec["version"] != nil},
		{"--url", template["url"] != nil || template["sourceType"] == string(v1alpha1.SourceBlank)},
		{"--size or --file", template["diskSize"] != nil}, {"--target-namespace", spec["targetNamespace"] != nil}, {"-l or --clusters", spec["placement"] != nil},
	} {
		if !need.has {
			missing = append(missing, need.flag)
		}
	}
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

// applyPlacement replaces the fields of the placement that flags name, and the waves: what else
// is stored of a wave of the same name, as requireApproval, stays.
func (r *Request) applyPlacement(spec, live map[string]any) error {
	below := func(name string) map[string]any {
		fields, _ := spec[name].(map[string]any)
		if fields == nil {
			fields = map[string]any{}
			spec[name] = fields
		}
		return fields
	}
	if r.Selector != nil {
		selector, err := parseSelector("-l", *r.Selector)
		if err != nil {
			return err
		}
		below("placement")["clusterSelector"] = selector
	}
	if len(r.Clusters) > 0 {
		below("placement")["clusterNames"] = toAny(slices.Compact(slices.Sorted(slices.Values(r.Clusters))))
	}
	if len(r.Waves) == 0 {
		return nil
	}
	former := map[string]map[string]any{}
	formerRollout, _ := merge(live, spec)["rollout"].(map[string]any)
	formerWaves, _ := formerRollout["waves"].([]any)
	for _, wave := range formerWaves {
		if fields, ok := wave.(map[string]any); ok {
			name, _ := fields["name"].(string)
			former[name] = fields
		}
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
		if slices.ContainsFunc(waves, func(other any) bool { return other.(map[string]any)["name"] == name }) { //nolint:forcetypeassert // made below
			return fmt.Errorf("--wave %s: there is a wave %s already: join both selectors in one, or give it another name", text, name)
		}
		wave := maps.Clone(former[name])
		if wave == nil {
			wave = map[string]any{"name": name}
		}
		wave["clusterSelector"] = parsed
		waves = append(waves, wave)
	}
	below("rollout")["waves"] = waves
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
		p.Notes = append(p.Notes, "the version stays and its source changes: clusters download it again")
	case p.Version != p.FromVersion && sameRevision && equality.Semantic.DeepEqual(stored.Spec.Overrides, desired.Overrides):
		p.Notes = append(p.Notes, "only the version changes: the new one has the same source")
	}
	if (p.Version != p.FromVersion || !sameRevision) && slices.ContainsFunc(stored.Spec.Approvals, func(a v1alpha1.Approval) bool { return a.Version == p.Version }) {
		p.Notes = append(p.Notes, "version "+p.Version+" has approvals from before, which the API server refuses for another source: publish another version, or have them removed from spec.approvals")
	}
	if stored.Spec.Rollout.Paused {
		p.Notes = append(p.Notes, "the rollout is paused: "+shellword.FormatCommand("kubectl ot rollout resume %s", p.Name)+" lets it begin")
	}
}
