//go:build linux

// Package fleet_test runs a hub and members, each with its chart and its rights,
// on control planes of their own.
package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// shared is the fleet that the tests of this package have in common. A test
// leaves it as it found it.
var shared *fleet

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx := context.Background()
	f, err := startFleet(ctx, nil, "frankfurt", "edge")
	if err == nil {
		err = errors.Join(f.join(ctx, "frankfurt"), f.apply(ctx, "edge", map[string]string{"edge": "true"}))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		if f != nil {
			_ = f.stop()
		}
		return 1
	}
	shared = f
	code := m.Run()
	if err := f.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}

// apply makes a MemberCluster as people do, beside a Secret that is not
// labelled.
func (f *fleet) apply(ctx context.Context, name string, labels map[string]string) error {
	secret, err := f.kubeconfig(ctx, name)
	if err != nil {
		return err
	}
	if err := f.Create(ctx, secret); client.IgnoreAlreadyExists(err) != nil {
		return err
	}
	return f.Create(ctx, &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: v1alpha1.MemberClusterSpec{Connection: v1alpha1.MemberConnection{
			KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: secret.Name},
		}},
	})
}
