//go:build linux

// Package fleet_test runs the hub and agents of several members, each with its chart and
// its rights, on control planes of their own. Only it shows whole journeys of a fleet:
// rollouts, approvals, references, members that leave, and mixed versions.
package fleet_test

import (
	"context"
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// shared is the fleet that the tests of this package have in common. A test
// leaves it as it found it.
var shared *testFleet

func TestMain(m *testing.M) {
	testenv.RunTestsWith(m, func(ctx context.Context) (func() error, error) {
		var err error
		if shared, err = startFleet(ctx, nil, "frankfurt", "edge"); err != nil {
			return nil, err
		}
		return shared.stop, errors.Join(shared.joinMember(ctx, "frankfurt"), shared.createMember(ctx, "edge", map[string]string{"edge": "true"}))
	})
}

// createMember makes a MemberCluster as people do, beside a Secret that is not
// labelled.
func (f *testFleet) createMember(ctx context.Context, name string, labels map[string]string) error {
	secret, err := f.newKubeconfigSecret(ctx, name)
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
