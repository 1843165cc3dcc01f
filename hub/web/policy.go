package web

import (
	"context"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pelotech/ot-fleet/api/ownership"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// getPolicy returns the fleet's policy, as it is written and as it is in force.
func (a *API) getPolicy(request *http.Request) (any, error) {
	var members v1alpha1.MemberClusterList
	if err := a.list(request.Context(), &members); err != nil {
		return nil, err
	}
	inForce := a.Policy()
	answer := readapi.FleetPolicy{
		PolicyState: readapi.PolicyState{Accepted: inForce.Accepted, Message: v1alpha1.SanitizeText(inForce.Message, maxErrorBytes)},
		ConfigMap:   a.readPolicy(request.Context()), Keys: policy.Keys(), Overrides: []readapi.PolicyOverride{}, Members: len(members.Items),
	}
	if p := inForce.Policy; p != nil {
		answer.InForce, answer.Overrides = p.Written(), p.OverrideUses(answers.PolicyMembers(members.Items))
		answer.Windows = p.WindowNumbers(a.now())
	}
	return answer, nil
}

// readPolicy reads the ConfigMap live: a change of it is based on its version. One that cannot
// be read leaves the policy in force, and who owns it unknown.
func (a *API) readPolicy(ctx context.Context) readapi.PolicyConfigMap {
	is := readapi.PolicyConfigMap{Namespace: a.PolicyKey.Namespace, Name: a.PolicyKey.Name}
	cm := &corev1.ConfigMap{}
	switch err := a.Live.Get(ctx, a.PolicyKey, cm); {
	case apierrors.IsNotFound(err):
		return is
	case err != nil:
		is.Unreadable = v1alpha1.SanitizeText("reading the ConfigMap: "+err.Error(), maxErrorBytes)
		return is
	}
	is.ResourceVersion, is.Data = cm.ResourceVersion, cm.Data
	if owner := ownership.FindOwner(cm, "data"); owner != nil {
		is.Owner = &readapi.PolicyOwner{
			Controller: owner.Controller, Manager: v1alpha1.SanitizeText(owner.Manager, maxKeyBytes), Source: v1alpha1.SanitizeText(owner.Source, maxKeyBytes),
		}
	}
	return is
}
