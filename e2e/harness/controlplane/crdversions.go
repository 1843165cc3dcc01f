//go:build linux

package controlplane

import (
	"context"
	"fmt"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// RemoveFields changes a CRD to that of a release without some fields, such as
// spec.images.plannedAt where images is a list: the API server drops them from what it stores.
// definition is the name of the CRD; upgrade restores it.
func (c *ControlPlane) RemoveFields(ctx context.Context, definition string, fields ...string) (upgrade func(context.Context) error, err error) {
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	all, err := client.New(c.Config(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := all.Get(ctx, client.ObjectKey{Name: definition}, crd); err != nil {
		return nil, fmt.Errorf("reading CustomResourceDefinition %s of %s: %w", definition, c.Name(), err)
	}
	newest, older := crd.DeepCopy().Spec, crd.Spec
	var probes []client.Object
	for _, field := range fields {
		content, err := removeField(older.Versions[0].Schema.OpenAPIV3Schema, strings.Split(field, "."))
		if err != nil {
			return nil, fmt.Errorf("taking %s out of CustomResourceDefinition %s: %w", field, definition, err)
		}
		probe := &unstructured.Unstructured{Object: content}
		probe.SetAPIVersion(older.Group + "/" + older.Versions[0].Name)
		probe.SetKind(older.Names.Kind)
		probe.SetNamespace(metav1.NamespaceDefault)
		probe.SetName("default")
		probes = append(probes, probe)
	}

	serve := func(ctx context.Context, spec apiextensionsv1.CustomResourceDefinitionSpec, known bool) error {
		err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			if err := all.Get(ctx, client.ObjectKey{Name: definition}, crd); err != nil {
				return err
			}
			spec.DeepCopyInto(&crd.Spec)
			return all.Update(ctx, crd)
		})
		if err != nil {
			return fmt.Errorf("updating CustomResourceDefinition %s of %s: %w", definition, c.Name(), err)
		}
		// The API server serves the change a little later. Strict validation reports a dropped
		// field before anything else.
		err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, Patience, true, func(ctx context.Context) (bool, error) {
			for _, probe := range probes {
				err := all.Create(ctx, probe.DeepCopyObject().(client.Object), client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
				if apierrors.IsBadRequest(err) == known {
					return false, nil
				}
			}
			return true, nil
		})
		if err != nil {
			return fmt.Errorf("waiting for %s to serve another %s: %w", c.Name(), definition, err)
		}
		return nil
	}
	upgrade = func(ctx context.Context) error { return serve(ctx, newest, true) }
	return upgrade, serve(ctx, older, false)
}

// removeField removes a field from a schema and returns an object that has the field.
func removeField(schema *apiextensionsv1.JSONSchemaProps, path []string) (map[string]any, error) {
	name, rest := path[0], path[1:]
	field, ok := schema.Properties[name]
	switch {
	case !ok:
		return nil, fmt.Errorf("there is no %s", name)
	case len(rest) == 0:
		delete(schema.Properties, name)
		return map[string]any{name: "any"}, nil
	case field.Items != nil:
		item, err := removeField(field.Items.Schema, rest)
		return map[string]any{name: []any{item}}, err
	}
	content, err := removeField(&field, rest) // the map in the copy is that of the original
	return map[string]any{name: content}, err
}
