package pod

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/network"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
	"github.com/coracle-dev/coracle/pkg/node/pod/static"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

// staticPod returns a pod as static.Manager passes it to StartStatic.
func staticPod(name, uid string, command ...string) *corev1.Pod {
	p := podOf(name, command...)
	p.Namespace, p.UID, p.Spec.NodeName, p.Spec.DNSPolicy = "default", types.UID(uid), "node", corev1.DNSDefault
	p.Annotations = map[string]string{"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": uid}
	p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "busybox", corev1.PullIfNotPresent
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBestEffort}
	return p
}

// mirror stores the mirror of a static pod in the API, without an update to the Manager.
func (r *rig) mirror(name, uid string) *corev1.Pod {
	m := staticPod(name, uid)
	m.Annotations[corev1.MirrorPodAnnotationKey], m.UID, m.Generation, m.ResourceVersion = uid, types.UID("uid-"+
		name), 1, "1"
	r.api.mu.Lock()
	defer r.api.mu.Unlock()
	r.api.manager = nil
	r.api.pods[m.UID] = m
	return m.DeepCopy()
}

// TestStaticPod checks the life of a static pod without the API, across processes, and with mirrors.
func TestStaticPod(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		p := staticPod("web", "hash", "sleep", "1000000")
		r.static = []*corev1.Pod{p}
		r.m.StartStatic(p, "web.yaml")
		r.pass(time.Second)
		require.Equal(t, []string{"main"}, r.running())
		first, found := r.m.Find("default", "web", "")
		require.True(t, found)
		require.Equal(t, corev1.PodRunning, first.Status.Phase)
		require.Empty(t, r.api.pods)

		r.pass(time.Minute)
		r.restart()
		r.pass(time.Second)
		again, _ := r.m.Find("default", "web", "hash")
		require.Equal(t, first.Status.ContainerStatuses, again.Status.ContainerStatuses, "the container runs on")
		require.Equal(t, first.Status.StartTime, again.Status.StartTime)

		r.m.SetMirror("hash", r.mirror("web", "hash"))
		synctest.Wait()
		shown := r.pod("web")
		require.Equal(t, corev1.PodRunning, shown.Status.Phase)
		require.Equal(t, again.Status.ContainerStatuses, shown.Status.ContainerStatuses)
		require.EqualValues(t, 1, shown.Status.ObservedGeneration)
		require.Equal(t, corev1.PodQOSBestEffort, shown.Status.QOSClass)
		_, found = r.m.Find("default", "web", shown.UID)
		require.True(t, found, "by its mirror's UID")

		// Another client reports the pod as failed, which is not true.
		shown.Status.Phase = corev1.PodFailed
		shown.ResourceVersion = "999"
		r.api.mu.Lock()
		r.api.pods[shown.UID] = shown.DeepCopy()
		r.api.mu.Unlock()
		r.m.SetMirror("hash", shown)
		synctest.Wait()
		require.Equal(t, corev1.PodRunning, r.pod("web").Status.Phase)
		require.Equal(t, []string{"main"}, r.running())

		r.m.SetMirror("hash", nil)
		r.pass(time.Minute)
		require.Equal(t, []string{"main"}, r.running(), "without a mirror")
		r.static = nil
		r.m.StopStatic("hash")
		r.pass(time.Minute)
		delete(r.api.pods, shown.UID)
		r.requireNothingLeft()
	})
}

// TestStaticPodOfAnEarlierProcess checks that such a pod is found and stopped without its manifest.
func TestStaticPodOfAnEarlierProcess(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.m.StartStatic(staticPod("web", "hash", "sleep", "1000000"), "a.yaml")
		r.create(podOf("other", "sleep", "1000000"))
		r.pass(time.Second)
		require.Equal(t,
			map[types.UID]static.Left{"hash": {Name: types.NamespacedName{Namespace: "default", Name: "web"}, File: "a.yaml"}},
			r.m.LeftStatic())
		var ended []types.UID
		r.m.c.StaticEnded = func(uid types.UID) { ended = append(ended, uid) }
		r.m.mu.Lock()
		delete(r.m.workers, "hash") // as if this process had not started it
		r.m.mu.Unlock()
		r.m.c.StaticPods = true
		require.NoError(t, r.m.Sync(t.Context()))
		r.pass(time.Minute)
		require.Equal(t, []string{"main", "main"}, r.running(), "it is no orphan while its manifest cannot be read")
		r.m.StopStatic("hash")
		r.pass(time.Minute)
		require.Equal(t, []types.UID{"hash"}, ended)
		require.Empty(t, r.m.LeftStatic())
		require.Equal(t, []string{"main"}, r.running(), "the other pod")
	})
}

// TestStaticPodsAreAdmitted checks admission against the node's resources, also before the node is registered.
func TestStaticPodsAreAdmitted(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.m.c.AdmitBy = func() *corev1.Node { return r.node }
		large := staticPod("large", "large", "sleep", "1000000")
		large.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")}
		r.m.StartStatic(large, "a.yaml")
		r.m.SetMirror("large", r.mirror("large", "large"))
		r.pass(time.Second)
		require.Equal(t, "OutOfmemory", r.pod("large").Status.Reason)
		require.Equal(t, corev1.PodFailed, r.pod("large").Status.Phase)
		require.Empty(t, r.running())
	})
}

// TestPodsThatPretendToBeStatic checks that annotations of static pods do not protect pods of the API from eviction.
func TestPodsThatPretendToBeStatic(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		p := podOf("web", "sleep", "1000000")
		p.ObjectMeta = metav1.ObjectMeta{
			Name: "web",
			Annotations: map[string]string{
				"kubernetes.io/config.source": "file",
				"kubernetes.io/config.hash":   "x",
				"mine":                        "stays",
			},
		}
		r.create(p)
		r.pass(time.Second)
		require.Len(t, r.m.Active(), 1)
		require.Equal(t, map[string]string{"mine": "stays"}, r.m.Active()[0].Annotations)
		require.Empty(t, r.m.LeftStatic())
		require.NotEmpty(t, eviction.Refuse(r.m.Active()[0].Pod, []corev1.NodeConditionType{corev1.NodeMemoryPressure}))
		require.Contains(t, r.pod("web").Annotations, "kubernetes.io/config.hash", "the API's pod is left as it is")
		r.change("web", func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} })
		r.pass(time.Second)
		require.Equal(t, map[string]string{"mine": "stays"}, r.m.Active()[0].Annotations)
	})
}

// TestStaticPodWhileAnOrphanOfItsUIDIsReleased checks that the pod starts after the release.
func TestStaticPodWhileAnOrphanOfItsUIDIsReleased(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.stop()
		// left by a process that was killed before the pod had a container
		r.network.sandboxes["hash"] = network.Sandbox{UID: "hash"}
		r.network.refusing(func(call string) error {
			if call == "teardown" {
				return errors.New("it does not let go")
			}
			return nil
		})
		r.start()
		p := staticPod("web", "hash", "sleep", "1000000")
		r.m.c.StaticEnded = func(uid types.UID) { r.m.StartStatic(p, "web.yaml") }
		r.m.StartStatic(p, "web.yaml")
		r.pass(time.Minute)
		require.Empty(t, r.running())
		r.network.refusing(nil)
		r.pass(time.Minute)
		require.Equal(t, []string{"main"}, r.running())
	})
}

// TestDrainStopsStaticPodsOfAnEarlierProcess checks that Drain stops static pods with unreadable manifests.
func TestDrainStopsStaticPodsOfAnEarlierProcess(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.m.StartStatic(staticPod("web", "hash", "sleep", "1000000"), "web.yaml")
		r.pass(time.Second)
		r.m.mu.Lock()
		delete(r.m.workers, "hash") // as if this process had not started it
		r.m.mu.Unlock()
		var stopped []string
		require.NoError(t, r.m.Drain(r.Context(), func(p *corev1.Pod) { stopped = append(stopped, p.Name) }))
		require.Equal(t, []string{"web"}, stopped)
		require.Empty(t, r.running())
	})
}

// TestStaticPodComesBackWhileItWaitedForRoom checks that a UID's first worker does not touch the second's containers.
func TestStaticPodComesBackWhileItWaitedForRoom(t *testing.T) {
	with(t, deafness, func(r *rig) {
		var ended []types.UID
		r.m.c.StaticEnded = func(uid types.UID) { ended = append(ended, uid) }
		r.create(asking(podOf("large", "deaf"), "900Mi"))
		r.pass(time.Second)
		p := asking(staticPod("static", "hash", "sleep", "1000000"), "500Mi")
		r.m.StartStatic(p, "static.yaml")
		r.pass(time.Second)
		require.Equal(t, []string{"main"}, r.running(), "it waits")
		r.m.StopStatic("hash")
		r.pass(time.Second)
		require.Equal(t, []types.UID{"hash"}, ended)
		r.m.StartStatic(p, "static.yaml")
		r.pass(time.Second)
		before, has := r.m.Find("default", "static", "hash")
		require.True(t, has)
		r.pass(time.Minute)
		after, _ := r.m.Find("default", "static", "hash")
		require.Equal(t, corev1.PodRunning, after.Status.Phase)
		require.Equal(t, []types.UID{"hash"}, ended)
		require.Equal(t, []string{"main"}, r.running())
		require.Equal(t, before.Status.StartTime, after.Status.StartTime)
		require.EqualValues(t, 0, after.Status.ContainerStatuses[0].RestartCount)
	})
}

// TestAMirrorThatIsReplacedWhileItsStatusIsWritten checks that the new mirror gets the status of an unchanged pod.
func TestAMirrorThatIsReplacedWhileItsStatusIsWritten(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.m.StartStatic(staticPod("web", "hash", "sleep", "1000000"), "web.yaml")
		r.pass(time.Second)
		first := r.mirror("web", "hash")
		second := first.DeepCopy()
		second.UID, second.ResourceVersion = "second", "2"
		replaced := false
		r.api.refusing(func(string) error {
			if !replaced {
				replaced = true
				r.api.mu.Lock()
				delete(r.api.pods, first.UID)
				r.api.pods["second"] = second.DeepCopy()
				r.api.mu.Unlock()
				r.m.SetMirror("hash", nil)
				r.m.SetMirror("hash", second)
			}
			return nil // the first mirror is gone
		})
		r.m.SetMirror("hash", first)
		r.pass(time.Minute)
		require.True(t, replaced)
		require.Equal(t, corev1.PodRunning, r.api.get("second").Status.Phase)
	})
}
