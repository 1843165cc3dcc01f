//go:build linux

package controlplane

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// InstallCRDs returns when the API server serves the kinds. They are created at once: it then
// publishes its schema a few times instead of once for each.
func InstallCRDs(ctx context.Context, config *rest.Config, crds []*apiextensionsv1.CustomResourceDefinition) error {
	c, err := apiextensionsclient.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("installing %d CRDs: %w", len(crds), err)
	}
	group, creating := errgroup.WithContext(ctx)
	for _, crd := range crds {
		group.Go(func() error {
			return RetryTimeouts(creating, func() error {
				_, err := c.ApiextensionsV1().CustomResourceDefinitions().Create(creating, crd, metav1.CreateOptions{})
				if apierrors.IsAlreadyExists(err) {
					err = envtest.CreateCRDs(config, []*apiextensionsv1.CustomResourceDefinition{crd})
				}
				return err
			})
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("installing %d CRDs: %w", len(crds), err)
	}
	if err := envtest.WaitForCRDs(config, crds, envtest.CRDInstallOptions{MaxTime: Patience, PollInterval: 50 * time.Millisecond}); err != nil {
		return fmt.Errorf("installing %d CRDs: %w", len(crds), err)
	}
	return nil
}

// InstallCRDFiles installs the CRDs of files, and of all files of directories.
func InstallCRDFiles(ctx context.Context, config *rest.Config, paths ...string) error {
	read := envtest.CRDInstallOptions{Paths: paths, ErrorIfPathMissing: true}
	if err := envtest.ReadCRDFiles(&read); err != nil {
		return fmt.Errorf("reading the CRDs in %v: %w", paths, err)
	}
	return InstallCRDs(ctx, config, read.CRDs)
}

// RetryTimeouts repeats a request that a stalled API server, or its etcd, did not finish in time.
// It may have been stored nevertheless.
func RetryTimeouts(ctx context.Context, request func() error) error {
	timedOut := func(err error) bool {
		return ctx.Err() == nil && (apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err))
	}
	return retry.OnError(wait.Backoff{Steps: 4, Duration: time.Second}, timedOut, request)
}
