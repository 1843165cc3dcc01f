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
	utiljson "k8s.io/apimachinery/pkg/util/json"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// forbiddenOverlayKeys are what the agent decides, or what would take the root disk past it.
var forbiddenOverlayKeys = map[string]string{
	"runStrategy":         "say it in spec.runStrategy",
	"running":             "say it in spec.runStrategy",
	"instancetype":        "say it in spec.instancetype",
	"preference":          "say it in spec.preference",
	"dataVolumeTemplates": "the root disk is made of the image; make further DataVolumes by themselves and name them as volumes",
}

var errOverlay = errors.New("overlay")

// applyOverlay is content, a BuildVirtualMachine VirtualMachine, with an overlay merged over its
// spec. It comes out as BuildVirtualMachine stores it: with quantities in one spelling and
// without what is empty, or it would look changed for ever.
func applyOverlay(content map[string]any, raw *runtime.RawExtension) (map[string]any, error) {
	if raw == nil || len(raw.Raw) == 0 {
		return content, nil
	}
	var over map[string]any
	if err := utiljson.Unmarshal(raw.Raw, &over); err != nil {
		return nil, fmt.Errorf("%w must be an object, with what belongs under spec of a KubeVirt VirtualMachine: %w", errOverlay, err)
	}
	for _, key := range slices.Sorted(maps.Keys(over)) {
		if why, no := forbiddenOverlayKeys[key]; no {
			return nil, fmt.Errorf("%w must not set %s: %s", errOverlay, key, why)
		}
		if slices.Contains([]string{"apiVersion", "kind", "metadata", "spec", "status"}, key) {
			return nil, fmt.Errorf("%w must not have %s: it is merged over spec of the KubeVirt VirtualMachine, so give the content of spec alone, such as {\"template\": {…}}", errOverlay, key)
		}
	}
	if len(over) == 0 {
		return content, nil
	}
	spec, _ := content["spec"].(map[string]any)
	content["spec"] = mergeMaps(spec, over)

	if err := validateVirtualMachine(content); err != nil {
		return nil, fmt.Errorf("%w: what comes of it is no KubeVirt VirtualMachine: %w", errOverlay, err)
	}
	var typed kubevirtv1.VirtualMachine
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &typed); err != nil {
		return nil, fmt.Errorf("%w: %w", errOverlay, err)
	}
	return toUnstructuredContent(typed)
}

// instanceSpec is without the methods of VirtualMachineInstanceSpec, one of
// which decodes it and passes over fields that it does not know.
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

// decodeStrictly tells what does not, under is where the content stands.
func decodeStrictly(content map[string]any, into any, under string) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	var mismatch *json.UnmarshalTypeError
	err = json.Unmarshal(text, into)
	if errors.As(err, &mismatch) {
		return fmt.Errorf("%s%s cannot be a %s", under, mismatch.Field, mismatch.Value)
	}
	if err != nil {
		return err
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(content, into, true)
	if strict, is := runtime.AsStrictDecodingError(err); is {
		return errors.New(strings.ReplaceAll(strings.TrimPrefix(strict.Error(), "strict decoding error: "), `unknown field "`, `unknown field "`+under))
	}
	return err
}

func mergeMaps(base, over map[string]any) map[string]any {
	if base == nil {
		base = map[string]any{}
	}
	for key, value := range over {
		if value == nil {
			delete(base, key)
		} else {
			base[key] = mergeValues(base[key], value)
		}
	}
	return base
}

func mergeValues(base, over any) any {
	switch over := over.(type) {
	case map[string]any:
		m, _ := base.(map[string]any)
		return mergeMaps(m, over)
	case []any:
		l, _ := base.([]any)
		return mergeLists(l, over)
	default:
		return over
	}
}

// mergeLists by name where all items of both have one.
func mergeLists(base, over []any) []any {
	if !allItemsNamed(base) || !allItemsNamed(over) {
		base = []any{}
	}
	merged := base
	for _, item := range over {
		i := slices.IndexFunc(base, func(b any) bool { return itemName(b) == itemName(item) })
		if i < 0 {
			merged = append(merged, mergeValues(nil, item))
		} else {
			merged[i] = mergeValues(merged[i], item)
		}
	}
	return merged
}

func allItemsNamed(list []any) bool {
	return len(list) > 0 && !slices.ContainsFunc(list, func(item any) bool { return itemName(item) == "" })
}

func itemName(item any) string {
	m, _ := item.(map[string]any)
	name, _ := m["name"].(string)
	return name
}
