package commands

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/control/controllers/loadbalancer"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// TestFrontendWithoutAddress checks that status says which Service has the frontend's port.
func TestFrontendWithoutAddress(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, errors.Join(corev1.AddToScheme(scheme), buildbarn.AddToScheme(scheme)))
	f := &buildbarn.BuildbarnFrontend{ObjectMeta: metav1.ObjectMeta{Namespace: "builds", Name: "farm-frontend"}}
	s := &corev1.Service{ObjectMeta: f.ObjectMeta}
	s.Status.Conditions = []metav1.Condition{{Type: loadbalancer.Condition, Status: metav1.ConditionFalse,
		Message: "port 8980/TCP of the nodes belongs to service old/farm-frontend"}}
	client := fake.NewClientBuilder().WithScheme(scheme).WithObjects(s).Build()
	d := drawing{cluster: cluster{&command.Cluster{Client: client}}}
	require.Contains(t, d.details(t.Context(), f),
		"no external address: port 8980/TCP of the nodes belongs to service old/farm-frontend")
}
