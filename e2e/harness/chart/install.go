//go:build linux

package chart

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

const (
	// fieldOwner is Helm's own: Helm can take the installation over.
	fieldOwner = client.FieldOwner("helm")
	// maxConcurrentApplies bounds how many objects are applied at a time.
	maxConcurrentApplies = 16
)

// Install applies every object of a chart by server-side apply, which fails on fields that
// the API server does not know. Templates see what the API server serves. It is idempotent.
//
// It does not wait until the API server enforces the chart's admission policies, which
// takes a second or two.
func Install(ctx context.Context, cfg *rest.Config, path, releaseName, namespace string, values map[string]any) error {
	rendered, err := RenderFor(ctx, cfg, path, releaseName, namespace, values)
	if err != nil {
		return err
	}
	c, err := client.New(cfg, client.Options{})
	if err != nil {
		return fmt.Errorf("installing chart %s: making a client for %s: %w", path, cfg.Host, err)
	}

	release := &unstructured.Unstructured{}
	release.SetAPIVersion("v1")
	release.SetKind("Namespace")
	release.SetName(namespace)
	namespaces := []*unstructured.Unstructured{release}
	var crds, others []*unstructured.Unstructured
	for _, object := range rendered {
		switch object.GroupVersionKind().GroupKind() {
		case schema.GroupKind{Kind: "Namespace"}:
			namespaces = append(namespaces, object)
		case schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}:
			crds = append(crds, object)
		default:
			others = append(others, object)
		}
	}
	for _, group := range [][]*unstructured.Unstructured{namespaces, crds} {
		if err := applyObjects(ctx, c, path, group); err != nil {
			return err
		}
	}
	for _, crd := range crds {
		if err := awaitEstablished(ctx, c, crd); err != nil {
			return fmt.Errorf("installing chart %s: %w", path, err)
		}
	}
	return applyObjects(ctx, c, path, others)
}

// applyObjects applies all at once: of definitions in a row the API server publishes its schema anew
// after each.
func applyObjects(ctx context.Context, c client.Client, path string, objects []*unstructured.Unstructured) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrentApplies)
	for _, object := range objects {
		group.Go(func() error {
			configuration := client.ApplyConfigurationFromUnstructured(object.DeepCopy())
			err := controlplane.RetryTimeouts(ctx, func() error { return c.Apply(ctx, configuration, fieldOwner, client.ForceOwnership) })
			if err != nil {
				return fmt.Errorf("installing chart %s: applying %s %s: %w", path, object.GetKind(), client.ObjectKeyFromObject(object), err)
			}
			return nil
		})
	}
	return group.Wait()
}

func awaitEstablished(ctx context.Context, c client.Client, crd *unstructured.Unstructured) error {
	current := &unstructured.Unstructured{}
	current.SetGroupVersionKind(crd.GroupVersionKind())
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, controlplane.Patience, true, func(ctx context.Context) (bool, error) {
		err := controlplane.RetryTimeouts(ctx, func() error { return c.Get(ctx, client.ObjectKeyFromObject(crd), current) })
		if err != nil {
			return false, err
		}
		found, _, err := unstructured.NestedFieldNoCopy(current.Object, "status", "conditions")
		if err != nil {
			return false, err
		}
		// The conditions of a new definition are null.
		conditions, _ := found.([]any)
		for _, entry := range conditions {
			if condition, ok := entry.(map[string]any); ok && condition["type"] == "Established" {
				return condition["status"] == "True", nil
			}
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for CustomResourceDefinition %s to be established: %w; its status is %v",
			crd.GetName(), err, current.Object["status"])
	}
	return nil
}
