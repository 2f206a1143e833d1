package commands

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// kontrolCluster returns a cluster with objects. All its Clusters reach the same target.
func kontrolCluster(t *testing.T, target ctrl.Client, objects ...ctrl.Object) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, errors.Join(corev1.AddToScheme(scheme), kontrol.AddToScheme(scheme)))
	resource := func(o ctrl.Object) []string {
		of, _ := kontrol.SplitStateName(o.GetName())
		return []string{of}
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&kontrol.Bundle{}).
		WithIndex(&kontrol.AppliedState{}, kontrol.FieldResource, resource).
		WithIndex(&kontrol.CurrentState{}, kontrol.FieldResource, resource)
	return &cluster{
		Cluster: &command.Cluster{
			Namespace: "shop",
			Client:    builder.Build(),
			REST:      &rest.Config{Host: "https://127.0.0.1:1"},
		},
		target: func(*rest.Config) (ctrl.Client, error) { return target, nil },
	}
}

func targetCluster(t *testing.T, objects ...ctrl.Object) ctrl.Client {
	t.Helper()
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	c := fake.NewClientBuilder().WithRESTMapper(mapper).WithObjects(objects...).WithReturnManagedFields().Build()
	return interceptor.NewClient(c, interceptor.Funcs{
		Patch: func(ctx context.Context, w ctrl.WithWatch, o ctrl.Object, p ctrl.Patch, opts ...ctrl.PatchOption) error {
			asked := (&ctrl.PatchOptions{}).ApplyOptions(opts)
			require.Equal(t, []string{metav1.DryRunAll}, asked.DryRun, "nothing is changed")
			// The fake client does not compute dry runs.
			return w.Patch(ctx, o, p, ctrl.ForceOwnership, ctrl.FieldOwner(asked.FieldManager))
		},
	})
}

// settings returns a Resource of a ConfigMap at revision 3, which was in sync at revision 2.
func settings(state kontrol.State) *kontrol.Resource {
	template := func(color string) runtime.RawExtension {
		return runtime.RawExtension{
			Raw: []byte(`{"apiVersion":"v1","data":{"color":"` + color +
				`","size":"1"},"kind":"ConfigMap","metadata":{"name":"settings","namespace":"shop"}}`),
		}
	}
	revision := int64(3)
	return &kontrol.Resource{
		ObjectMeta: metav1.ObjectMeta{Name: "settings", UID: "u1", Generation: 5},
		Spec: kontrol.ResourceSpec{
			ClusterName:    "edge",
			Template:       template("blue"),
			Revision:       &revision,
			Mode:           kontrol.ModeCorrect,
			DeletionPolicy: kontrol.DeletionDelete,
		},
		Status: kontrol.ResourceStatus{
			ID: 7, State: state, ObservedGeneration: 5, Clusters: kontrol.ClusterCounts{Total: 1},
			Message: "on edge: .data.color was changed by hand",
			History: []kontrol.Revision{
				{Revision: 2, Generation: 3, Template: template("green"), ReplacedAt: metav1.NewTime(time.Now().Add(-time.Minute))},
				{Revision: 1, Generation: 1, Template: template("red"), ReplacedAt: metav1.NewTime(time.Now().Add(-time.Hour))},
			},
		},
	}
}

// drifted returns the CurrentState of settings on the cluster edge, where another manager changed its color.
func drifted() *kontrol.CurrentState {
	return &kontrol.CurrentState{ObjectMeta: metav1.ObjectMeta{Name: "settings.edge"}, State: kontrol.Current{
		Subject: kontrol.Subject{
			Resource:    "settings",
			ResourceUID: "u1",
			ResourceID:  7,
			Cluster:     "edge",
			Target:      kontrol.Target{APIVersion: "v1", Kind: "ConfigMap", Namespace: "shop", Name: "settings"},
		},
		Present: true, Generation: 5, Revision: 3, DriftCount: 1, Health: kontrol.HealthHealthy,
		Object: runtime.RawExtension{
			Raw: []byte(`{"apiVersion":"v1","data":{"color":"pink","size":"1","more":"x"},"kind":"ConfigMap","metadata":{"name":"settings","namespace":"shop"}}`),
		},
		Drift: []kontrol.Drift{
			{
				Path: ".data.color", Type: kontrol.DriftChanged, Desired: `"blue"`, Actual: `"pink"`, Manager: "kubectl-edit",
				FirstSeen: metav1.NewMicroTime(time.Now().Add(-5 * time.Second)),
			},
		},
	}}
}

func edge() *kontrol.Cluster {
	return &kontrol.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "edge", Labels: map[string]string{"env": "prod"}},
		Spec:       kontrol.ClusterSpec{Local: true},
	}
}

func ran(t *testing.T, f func(command.Terminal) error) (out, errOut string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	err := f(command.Terminal{In: strings.NewReader(""), Out: &o, Err: &e})
	var exit *command.Exit
	switch {
	case errors.As(err, &exit):
		code = exit.Code
		if exit.Err != nil {
			e.WriteString(exit.Err.Error())
		}
	case err != nil:
		code = 1
		e.WriteString(err.Error())
	}
	return o.String(), e.String(), code
}
