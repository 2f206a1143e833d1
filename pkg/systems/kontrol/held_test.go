package kontrol

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// BenchmarkHeld reports how many bytes the cache's objects take for each Resource in sync on one cluster, as they come
// from the store: the Resource and its two states, each last written at a time of its own.
func BenchmarkHeld(b *testing.B) {
	const n = 10_000
	row := newShared().pack(resourceRow())
	live := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for b.Loop() {
		before := live()
		held := make([]client.Object, 0, 3*n)
		for i := range n {
			at, name, id := time.Unix(int64(1e9+i), 5000), fmt.Sprintf("many-%05d", i), uuid.NewString()
			second, micro, revision := metav1.Unix(at.Unix(), 0), metav1.NewMicroTime(at), int64(1)
			meta := metav1.ObjectMeta{
				Name: name, UID: types.UID(id), CreationTimestamp: second, Generation: 1,
				ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", Operation: "Update",
					APIVersion: "kontrol.coracle.dev/v1alpha1", Time: &second, FieldsType: "FieldsV1",
					FieldsV1: metav1.NewFieldsV1(`{"f:state":{}}`)}},
			}
			template := fmt.Appendf(nil,
				`{"apiVersion":"v1","data":{"value":"https://%s.example.com/"},"kind":"ConfigMap","metadata":{"labels":{"app":"bench"},"name":%q,"namespace":"bench"}}`, name, name)
			of := kontrol.Subject{
				Resource:    name,
				ResourceUID: id,
				ResourceID:  kontrol.IDOf(id),
				Cluster:     "bench",
				Target:      kontrol.Target{APIVersion: "v1", Kind: "ConfigMap", Namespace: "bench", Name: name},
			}
			r := &kontrol.Resource{
				ObjectMeta: meta,
				Spec: kontrol.ResourceSpec{
					ClusterName: "bench", Mode: kontrol.ModeCorrect, DeletionPolicy: kontrol.DeletionDelete, Revision: &revision,
					Template: kruntime.RawExtension{Raw: template},
				},
				Status: kontrol.ResourceStatus{ID: kontrol.IDOf(id), ObservedGeneration: 1, State: kontrol.StateSynced,
					Conditions: []metav1.Condition{
						{Type: kontrol.ConditionSynced, Status: "True", Reason: "Synced", LastTransitionTime: second},
						{Type: kontrol.ConditionHealthy, Status: "True", Reason: "Healthy", LastTransitionTime: second},
					}},
			}
			meta.Name = kontrol.StateName(name, "bench")
			a := &kontrol.AppliedState{
				ObjectMeta: meta,
				State: kontrol.Applied{
					Subject: of, Generation: 1, Revision: 1, Attempted: true, AttemptedGeneration: 1, Status: kontrol.ApplyApplied,
					Time: &micro, AppliedAt: &micro,
					Object: kruntime.RawExtension{Raw: template},
					Fields: kruntime.RawExtension{Raw: []byte(`{"f:data":{"f:value":{}}}`)},
				},
			}
			c := &kontrol.CurrentState{
				ObjectMeta: meta,
				State: kontrol.Current{
					Subject: of, Present: true, Generation: 1, Revision: 1, UID: id, ResourceVersion: "1234",
					Health: kontrol.HealthHealthy, Time: &micro,
					Object: kruntime.RawExtension{Raw: template},
				},
			}
			for _, o := range []client.Object{r, a, c} {
				text, err := json.Marshal(o)
				require.NoError(b, err)
				stored := o.DeepCopyObject().(client.Object)
				switch s := stored.(type) {
				case *kontrol.Resource:
					*s = kontrol.Resource{}
				case *kontrol.AppliedState:
					*s = kontrol.AppliedState{}
				case *kontrol.CurrentState:
					*s = kontrol.CurrentState{}
				}
				require.NoError(b, json.Unmarshal(text, stored))
				stored.SetResourceVersion(fmt.Sprint(1e6 + i))
				held = append(held, row.Pack(stored))
			}
		}
		b.ReportMetric((live()-before)/n, "B/Resource")
		runtime.KeepAlive(held)
	}
}
