package web

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/api/yamlalias"
	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// getBlastRadius says what a policy would change. It writes nothing.
func (a *API) getBlastRadius(request *http.Request) (any, error) {
	limit, err := parseLimit(request)
	if err != nil {
		return nil, err
	}
	text := request.URL.Query().Get("policy")
	switch {
	case text == "":
		return nil, httpError{http.StatusBadRequest, `policy is required: the data of the policy's ConfigMap, such as {"concurrency":"4"}`}
	case len(text) > readapi.MaxPolicyBytes:
		return nil, httpError{http.StatusBadRequest, fmt.Sprintf("policy has %d bytes, and may have %d: compare it with kubectl ot policy diff -f", len(text), readapi.MaxPolicyBytes)}
	}
	data := map[string]string{}
	if err := yamlalias.Check([]byte(text)); err != nil {
		return nil, httpError{http.StatusBadRequest, "policy: " + err.Error()}
	}
	if err := yaml.UnmarshalStrict([]byte(text), &data); err != nil {
		return nil, httpError{http.StatusBadRequest, "policy is not the data of a ConfigMap, keys with texts: " + err.Error()}
	}
	var members v1alpha1.MemberClusterList
	if err := a.list(request.Context(), &members); err != nil {
		return nil, err
	}
	then, unknown, errs := policy.ParsePolicy(data)
	if len(errs) > 0 {
		return answers.RefusePolicy(errs, len(members.Items)), nil
	}
	grants, err := a.grants(request.Context())
	if err != nil {
		return nil, err
	}
	radius := answers.BlastRadius(&answers.CompareBlast{
		InForce: a.Policy(), Then: then, Members: members.Items, Unknown: a.unknownMembers(), Activities: a.activities(members.Items),
		Clocks: a.clocks(members.Items, a.now()), Grants: grants, Limit: limit,
	})
	radius.UnknownKeys = boundKeys(unknown)
	return radius, nil
}

// maxUnknownKeys is how many keys that no version knows an answer names.
const maxUnknownKeys = 20

// boundKeys returns names of keys that others wrote.
func boundKeys(keys []string) (bounded []string) {
	for _, key := range keys[:min(len(keys), maxUnknownKeys)] {
		bounded = append(bounded, v1alpha1.SanitizeText(key, maxKeyBytes))
	}
	return bounded
}

// grants returns the TransferGrants by member.
func (a *API) grants(ctx context.Context) (map[string]*v1alpha1.TransferGrant, error) {
	var list v1alpha1.TransferGrantList
	if err := a.list(ctx, &list); err != nil {
		return nil, err
	}
	grants := make(map[string]*v1alpha1.TransferGrant, len(list.Items))
	for i := range list.Items {
		if member, ok := strings.CutPrefix(list.Items[i].Namespace, v1alpha1.MemberNamespacePrefix); ok {
			grants[member] = &list.Items[i]
		}
	}
	return grants, nil
}
