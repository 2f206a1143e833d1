package pod

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestANameIsOfThePodThatHasIt checks that a lookup by name does not find a pod deleted by force that is still ending.
func TestANameIsOfThePodThatHasIt(t *testing.T) {
	with(t, slowPrograms(), func(r *rig) {
		p := r.create(podOf("web", "slow"))
		p.Spec.TerminationGracePeriodSeconds = new(int64(30))
		r.change("web", func(stored *corev1.Pod) { *stored = *p })
		for _, uid := range []types.UID{"uid-2", "uid-3", "uid-4", "uid-5"} {
			was := p.UID
			r.api.remove(was)
			synctest.Wait()
			_, found := r.m.Find("default", "web", "")
			require.False(t, found)
			_, found = r.m.Find("default", "web", was)
			require.True(t, found, "it is still being ended")
			p = p.DeepCopy()
			p.UID, p.ResourceVersion = uid, ""
			r.api.put(p)
			synctest.Wait()
			is, found := r.m.Find("default", "web", "")
			require.True(t, found)
			require.Equal(t, uid, is.UID)
		}
		r.pass(time.Minute)
		require.Len(t, r.running(), 1)
	})
}

// A lookup copies only the pod that it finds.
func TestALookupCopiesNoOtherPods(t *testing.T) {
	with(t, slowPrograms(), func(r *rig) {
		r.create(podOf("web", "slow"))
		large := podOf("large", "slow")
		for i := range 10_000 {
			large.Spec.Containers[0].Env = append(large.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprint("E", i)})
		}
		r.create(large)
		synctest.Wait()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 200 { // in any order of the pods
			_, found := r.m.Find("default", "web", "")
			require.True(t, found)
		}
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20))
	})
}
