package readapi

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// FleetPolicy is the fleet's policy: as it is written, and as it is in force.
type FleetPolicy struct {
	PolicyState
	// InForce is the data of the policy in force; absent if there was never a valid one.
	InForce map[string]string `json:"inForce,omitempty"`
	// Windows are the numbers that the windows of the whole fleet make of InForce; absent
	// without such windows.
	Windows   *PolicyWindowNumbers `json:"windows,omitempty"`
	ConfigMap PolicyConfigMap      `json:"configMap"`
	// Keys are all keys that this hub knows.
	Keys []PolicyKey `json:"keys"`
	// Overrides of the policy in force, in their order, over Members.
	Overrides []PolicyOverride `json:"overrides"`
	Members   int              `json:"members"`
}

// PolicyWindowNumbers are the numbers in force at the time of the answer, and the next ones.
// Overrides may set others for their members.
type PolicyWindowNumbers struct {
	Now PolicyNumbers `json:"now"`
	// ChangesAt is when the next other numbers come into force, and Then what these are; both
	// absent where no change is near.
	ChangesAt *metav1.Time   `json:"changesAt,omitempty"`
	Then      *PolicyNumbers `json:"then,omitempty"`
}

// PolicyNumbers are the numbers of a policy that windows replace.
type PolicyNumbers struct {
	Concurrency int32 `json:"concurrency"`
	// FleetConcurrency is absent without a fleet-wide budget.
	FleetConcurrency *int32 `json:"fleetConcurrency,omitempty"`
}

// PolicyConfigMap is the ConfigMap of the policy.
type PolicyConfigMap struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// ResourceVersion is absent where there is none.
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Data            map[string]string `json:"data,omitempty"`
	// Owner is a GitOps controller that would write its own data again; absent for none.
	Owner *PolicyOwner `json:"owner,omitempty"`
	// Unreadable is why nothing is known of it.
	Unreadable string `json:"unreadable,omitempty"`
}

// PolicyOwner is a GitOps controller that has data of the policy's ConfigMap.
type PolicyOwner struct {
	// Controller is its product, as in Flux; Manager its name as a field manager.
	Controller string `json:"controller"`
	Manager    string `json:"manager"`
	// Source is what it applies, as in Kustomization flux-system/images; absent where the
	// object does not say.
	Source string `json:"source,omitempty"`
}

// PolicyKind is the type of the values of a key.
type PolicyKind string

// Types of values.
const (
	PolicyNumber   PolicyKind = "number"
	PolicyDuration PolicyKind = "duration"
	PolicyBoolean  PolicyKind = "boolean"
	// PolicyHosts is a list of CIDRs and hosts.
	PolicyHosts PolicyKind = "hosts"
	// PolicyGroups, PolicyOverrides and PolicyWindows are YAML lists.
	PolicyGroups    PolicyKind = "groups"
	PolicyOverrides PolicyKind = "overrides"
	PolicyWindows   PolicyKind = "windows"
)

// PolicyKey is a key of the policy, and which values it takes.
type PolicyKey struct {
	Name string     `json:"name"`
	Kind PolicyKind `json:"kind"`
	// Least and Most are the bounds of a number or duration.
	Least string `json:"least,omitempty"`
	Most  string `json:"most,omitempty"`
	// Default is what holds where nothing sets the key; absent for nothing.
	Default string `json:"default,omitempty"`
	// FleetOnly keys are for the whole fleet, and overrides cannot set them.
	FleetOnly bool `json:"fleetOnly,omitempty"`
	// Meaning is what the key does, in Markdown.
	Meaning string `json:"meaning"`
}

// PolicyOverride is an override of the policy.
type PolicyOverride struct {
	// Source names it, as in override edge=true.
	Source string `json:"source"`
	// Members that it matches.
	Members int                 `json:"members"`
	Keys    []PolicyOverrideKey `json:"keys"`
}

// PolicyOverrideKey is a key that an override sets.
type PolicyOverrideKey struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	// Members of which the override decides the key: no other one wins over it.
	Members int `json:"members"`
}
