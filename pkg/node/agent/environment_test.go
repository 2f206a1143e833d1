package agent

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	fakeruntime "github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }

// A container's environment is built from services, then envFrom, then env; later values win.
func TestEnvironment(t *testing.T) {
	got := make(chan []string, 1)
	programs := map[string]fakeruntime.Program{"report": func(_ context.Context, p *fakeruntime.Process) int {
		got <- slices.Clone(p.Env)
		return 0
	}}
	node(t, fakeruntime.Config{Programs: programs}, func(b *bench) {
		yes := true
		require.NoError(t,
			b.cluster.Create(b.ctx, &corev1.ConfigMap{
				ObjectMeta: named("cm"), Data: map[string]string{"A": "map", "B": "map", "not a=name": "x"},
			}))
		require.NoError(t,
			b.cluster.Create(b.ctx, &corev1.Secret{
				ObjectMeta: named("s"), Data: map[string][]byte{"A": []byte("secret"), "pw": []byte("hush")},
			}))
		require.NoError(t, b.cluster.Create(b.ctx, &corev1.Service{ObjectMeta: named("my-db"),
			Spec: corev1.ServiceSpec{
				ClusterIP: "10.1.2.3", Ports: []corev1.ServicePort{{Name: "sql", Port: 5432, Protocol: corev1.ProtocolTCP}},
			}}))
		b.settle()
		p := simple("web", "report")
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		c := &p.Spec.Containers[0]
		ref := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
		c.EnvFrom = []corev1.EnvFromSource{
			{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("cm")}},
			{Prefix: "S_", SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref("s")}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref("absent"), Optional: &yes}},
		}
		c.Env = []corev1.EnvVar{
			{Name: "B", Value: "own"},
			{Name: "URL", Value: "$(MY_DB_SERVICE_HOST)/$(B)/$(NONE)/$$(B)"},
			{
				Name:      "PW",
				ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref("s"), Key: "pw"}},
			},
			{
				Name: "SKIPPED",
				ValueFrom: &corev1.EnvVarSource{
					ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref("cm"), Key: "none", Optional: &yes},
				},
			},
			{Name: "IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
		}
		b.create(p)
		env := <-got
		for _, want := range []string{
			"A=map", "B=own", "S_A=secret", "S_pw=hush", "URL=10.1.2.3/own/$(NONE)/$(B)", "PW=hush", "IP=10.0.0.1",
			"MY_DB_SERVICE_PORT_SQL=5432", "MY_DB_PORT=tcp://10.1.2.3:5432",
		} {
			require.Contains(t, env, want)
		}
		for _, e := range env {
			require.NotContains(t, e, "SKIPPED")
			require.NotContains(t, e, "not a")
		}
	})
}

// A container whose environment refers to missing objects reports them, and starts when they exist.
func TestMissingConfiguration(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		p := simple("web", "sleep", "1000000")
		p.Spec.Containers[0].Env = []corev1.EnvVar{
			{Name: "A", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "late"}, Key: "k"}}},
		}
		waiting := b.create(p).Status.ContainerStatuses[0].State.Waiting
		require.NotNil(t, waiting)
		require.Equal(t, "CreateContainerConfigError", waiting.Reason)
		require.Contains(t, waiting.Message, `configmaps "late" not found`)

		began := time.Now()
		cm := &corev1.ConfigMap{ObjectMeta: named("late"), Data: map[string]string{"other": "x"}}
		require.NoError(t, b.cluster.Create(b.ctx, cm))
		b.settle()
		require.Contains(t, b.pod("web").Status.ContainerStatuses[0].State.Waiting.Message,
			"couldn't find key k in ConfigMap default/late")
		cm.Data["k"] = "v"
		require.NoError(t, b.cluster.Update(b.ctx, cm))
		b.settle()
		require.Equal(t, corev1.PodRunning, b.pod("web").Status.Phase)
		require.Zero(t, time.Since(began), "it waits for no timer")
	})
}

// When the node stops, containers end within their grace period, and the next agent starts the pods again.
func TestDrain(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		b.create(simple("a", "sleep", "1000000"))
		done := simple("done", "true")
		done.Spec.RestartPolicy = corev1.RestartPolicyNever
		b.create(done)
		require.Equal(t, corev1.PodSucceeded, b.pod("done").Status.Phase)
		before := b.pod("a")

		var ended []string
		require.NoError(t, b.agent.StopPods(b.ctx, func(p *corev1.Pod) { ended = append(ended, p.Name) }))
		require.Equal(t, []string{"a"}, ended, "the other had nothing running")
		for _, c := range b.containers() {
			require.Equal(t, runtime.Exited, c.State)
		}
		require.Empty(t, b.network.sandboxes)
		require.Equal(t, before.Status, b.pod("a").Status)
		b.create(simple("late", "sleep", "1000000"))
		require.Equal(t, corev1.PodPhase(""), b.pod("late").Status.Phase, "none starts any more")

		b.stop()
		b.start()
		b.settle()
		require.Equal(t, corev1.PodRunning, b.pod("a").Status.Phase)
		require.EqualValues(t, 1, b.pod("a").Status.ContainerStatuses[0].RestartCount)
		require.Equal(t, corev1.PodRunning, b.pod("late").Status.Phase)
		require.Equal(t, corev1.PodSucceeded, b.pod("done").Status.Phase)
	})
}

// Actions that failed for lack of the network are retried without back-off when the network is up.
func TestRetryAfterTheNetworkCame(t *testing.T) {
	node(t, fakeruntime.Config{}, func(b *bench) {
		b.network.fail = errors.New("no address")
		b.create(simple("web", "sleep", "1000000"))
		b.pass(2 * time.Minute)
		require.Equal(t, corev1.PodPending, b.pod("web").Status.Phase)
		b.network.fail = nil
		began := time.Now()
		b.agent.pods.Retry()
		b.settle()
		require.Equal(t, corev1.PodRunning, b.pod("web").Status.Phase)
		require.Zero(t, time.Since(began))
	})
}
