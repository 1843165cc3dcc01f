package kubevirt

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// forbiddenOverlayKeys have a field of their own in the VirtualMachine, or would give the
// machine a root disk that the agent does not know. The values say what to do instead.
var forbiddenOverlayKeys = map[string]string{
	"runStrategy":         "set spec.runStrategy instead",
	"running":             "set spec.runStrategy instead",
	"instancetype":        "set spec.instancetype instead",
	"preference":          "set spec.preference instead",
	"dataVolumeTemplates": "list disks beside the root disk in spec.disks, or create DataVolumes separately and add them as volumes",
}

var errOverlay = errors.New("overlay")

// applyOverlay merges an overlay into the spec of content, a KubeVirt VirtualMachine. It
// returns the result as KubeVirt stores it, with canonical quantities and without empty
// fields: otherwise every comparison with the live object would find a difference.
func applyOverlay(content, overlay map[string]any) (map[string]any, error) {
	for _, key := range slices.Sorted(maps.Keys(overlay)) {
		if advice, forbidden := forbiddenOverlayKeys[key]; forbidden {
			return nil, fmt.Errorf("%w must not set %s: %s", errOverlay, key, advice)
		}
		if slices.Contains([]string{"apiVersion", "kind", "metadata", "spec", "status"}, key) {
			return nil, fmt.Errorf("%w must not set %s: it is merged into spec of the KubeVirt VirtualMachine, so give the content of spec alone, such as {\"template\": {…}}", errOverlay, key)
		}
	}
	if len(overlay) == 0 {
		return content, nil
	}
	if err := checkDirectives(overlay, &overlayPath{key: "spec"}, false); err != nil {
		return nil, err
	}
	spec, _ := content["spec"].(map[string]any)
	content["spec"] = mergeMaps(spec, overlay)

	if err := validateVirtualMachine(content); err != nil {
		return nil, fmt.Errorf("%w: the result is no valid KubeVirt VirtualMachine: %w", errOverlay, err)
	}
	var typed kubevirtv1.VirtualMachine
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &typed); err != nil {
		return nil, fmt.Errorf("%w: %w", errOverlay, err)
	}
	if err := checkVolumes(typed.Spec.Template.Spec.Volumes); err != nil {
		return nil, err
	}
	return toUnstructuredContent(typed)
}

// OverlayDisk returns the DataVolume or claim that the overlay of a machine names for a volume; empty for none.
func OverlayDisk(vm *v1alpha1.VirtualMachine, volume string) string {
	overlay, _ := decodeOverlay(vm) // an invalid one names none
	return volumeClaim(findVolume(map[string]any{"spec": overlay}, volume))
}

// checkVolumes refuses volumes that give the guest more than its author has: a token of a
// ServiceAccount of the namespace, or files of the node.
func checkVolumes(volumes []kubevirtv1.Volume) error {
	for i := range volumes {
		v := &volumes[i]
		switch {
		case v.ServiceAccount != nil:
			return fmt.Errorf("%w must not add volume %s of type serviceAccount, which gives the guest a token of the namespace: put a token with the rights it needs into a Secret, and use a volume of type secret", errOverlay, v.Name)
		case v.HostDisk != nil:
			return fmt.Errorf("%w must not add volume %s of type hostDisk, which gives the guest files of its node: use a DataVolume or PersistentVolumeClaim", errOverlay, v.Name)
		}
	}
	return nil
}

// instanceSpec has no methods: UnmarshalJSON of VirtualMachineInstanceSpec would ignore
// unknown fields.
type instanceSpec kubevirtv1.VirtualMachineInstanceSpec

func validateVirtualMachine(content map[string]any) error {
	spec, found, err := unstructured.NestedMap(content, "spec", "template", "spec")
	if err != nil {
		return err
	}
	if !found {
		return errors.New("spec.template.spec is missing")
	}
	outer := runtime.DeepCopyJSON(content)
	unstructured.RemoveNestedField(outer, "spec", "template", "spec")
	if err := decodeStrictly(outer, &kubevirtv1.VirtualMachine{}, ""); err != nil {
		return err
	}
	return decodeStrictly(spec, &instanceSpec{}, "spec.template.spec.")
}

// decodeStrictly returns an error for unknown fields and wrong types. Its paths begin with
// prefix.
func decodeStrictly(content map[string]any, into any, prefix string) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	var mismatch *json.UnmarshalTypeError
	err = json.Unmarshal(text, into)
	if errors.As(err, &mismatch) {
		return fmt.Errorf("%s%s cannot be a %s", prefix, mismatch.Field, mismatch.Value)
	}
	if err != nil {
		return err
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(content, into, true)
	if strict, ok := runtime.AsStrictDecodingError(err); ok {
		return errors.New(strings.ReplaceAll(strings.TrimPrefix(strict.Error(), "strict decoding error: "), `unknown field "`, `unknown field "`+prefix))
	}
	return err
}

// mergeMaps merges by key; null and $patch: delete remove a key.
func mergeMaps(base, overlay map[string]any) map[string]any {
	if base == nil {
		base = map[string]any{}
	}
	for key, value := range overlay {
		if removes(value) {
			delete(base, key)
		} else {
			base[key] = mergeValues(base[key], value)
		}
	}
	return base
}

func mergeValues(base, overlay any) any {
	switch overlay := overlay.(type) {
	case map[string]any:
		m, _ := base.(map[string]any)
		return mergeMaps(m, overlay)
	case []any:
		l, _ := base.([]any)
		return mergeLists(l, overlay)
	default:
		return overlay
	}
}

// mergeLists merges items by name where all items of both lists have one; otherwise
// overlay replaces base.
func mergeLists(base, overlay []any) []any {
	if !allItemsNamed(base) || !allItemsNamed(overlay) {
		base = []any{}
	}
	merged, removed := base, map[string]bool{}
	for _, item := range overlay {
		i := slices.IndexFunc(base, func(b any) bool { return itemName(b) == itemName(item) })
		switch {
		case removes(item) && i >= 0:
			removed[itemName(item)] = true
		case removes(item):
		case i < 0:
			merged = append(merged, mergeValues(nil, item))
		default:
			merged[i] = mergeValues(merged[i], item)
		}
	}
	return slices.DeleteFunc(merged, func(item any) bool { return removed[itemName(item)] })
}

func allItemsNamed(list []any) bool {
	return len(list) > 0 && !slices.ContainsFunc(list, func(item any) bool { return itemName(item) == "" })
}

func itemName(item any) string {
	m, _ := item.(map[string]any)
	name, _ := m["name"].(string)
	return name
}
