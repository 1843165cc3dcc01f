package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func newNode(name, subnet string, addresses ...corev1.NodeAddress) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.NodeSpec{PodCIDR: subnet},
		Status:     corev1.NodeStatus{Addresses: addresses},
	}
}

func TestPlan(t *testing.T) {
	internal := func(ip string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip}
	}
	hostname := corev1.NodeAddress{Type: corev1.NodeHostName, Address: "b"}
	for _, test := range []struct {
		name       string
		nodes      []corev1.Node
		wantOwn    string
		wantRoutes []route
	}{
		{name: "alone", nodes: []corev1.Node{newNode("a", "10.1.0.0/24", internal("172.18.0.2"))}, wantOwn: "10.1.0.0/24"},
		{
			name: "others by their internal address",
			nodes: []corev1.Node{
				newNode("a", "10.1.0.0/24", internal("172.18.0.2")),
				newNode("b", "10.1.1.0/24", hostname, internal("172.18.0.3")),
			},
			wantOwn: "10.1.0.0/24", wantRoutes: []route{{subnet: "10.1.1.0/24", via: "172.18.0.3"}},
		},
		{name: "no way to what has no address", nodes: []corev1.Node{newNode("b", "10.1.1.0/24", hostname)}},
		{name: "nor to what has no Pods", nodes: []corev1.Node{newNode("b", "", internal("172.18.0.3"))}},
	} {
		t.Run(test.name, func(t *testing.T) {
			own, routes := planRoutes(test.nodes, "a")
			assert.Equal(t, test.wantOwn, own)
			assert.Equal(t, test.wantRoutes, routes)
		})
	}
}
