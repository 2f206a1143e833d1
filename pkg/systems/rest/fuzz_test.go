package rest

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/view"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

// FuzzDecode checks that decoding and conversion of any input return an error or an object, without panic.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"name":"a","image":"i","env":{"A":"1"},"ports":[{"containerPort":80,"hostPort":8080}],"resources":{"limits":{"cpu":1}}}`,
		`{"name":"a","containers":[{"name":"c","image":"i","livenessProbe":{"type":"http","port":80}}]}`,
		`{"name":"a","selector":{"a":"b"},"ports":[{"port":80}]}`, `{"hostname":"h","port":1,"cpu":"500m","memory":"1.5Gi"}`,
		`{"status":"failed","error":"container exited with code 9","containers":[{"name":"task"}]}`, `[[[[`, `"\"`,
		`{"cluster_id":"c","kind":"ConfigMap","name":"a","desired_spec":{"metadata":{"labels":{"a":"b"}},"data":{"a":"1"}},"revision":3}`,
	} {
		f.Add([]byte(seed), "a~2~3")
	}
	f.Fuzz(func(t *testing.T, data []byte, id string) {
		var task wire.CreateTask
		if decode(data, &task) == nil {
			if made, err := view.NewTask(&task, "default", "x"); err == nil {
				view.Task(made)
			}
		}
		var pod wire.CreatePod
		if decode(data, &pod) == nil {
			if made, err := view.NewPod(&pod, "default", "x"); err == nil {
				view.Pod(made, "default")
			}
		}
		var service wire.CreateService
		if decode(data, &service) == nil {
			if made, err := view.NewService(&service, "default"); err == nil {
				view.Service(made, "default")
			}
		}
		var node wire.RegisterNode
		if decode(data, &node) == nil {
			if cpu, err := view.CPU(node.CPU); err == nil && cpu > 1<<60 {
				t.Fatal("too much CPU")
			}
			_, _ = view.Memory(node.Memory)
		}
		on := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "task"}}}}
		var report wire.PodStatus
		if decode(data, &report) == nil {
			_, _ = view.ReportPod(on, &report, time.Now())
		}
		var status wire.TaskStatus
		if decode(data, &status) == nil {
			_, _ = view.ReportTask(on, &status, time.Now())
		}
		var resource wire.CreateResource
		if decode(data, &resource) == nil {
			if made, err := view.NewResource(&resource, "x"); err == nil {
				kontrol.Default(made)
				kontrol.Prepare(made, nil)
				if len(kontrol.Validate(made)) == 0 && kontrol.TargetOf(made).Name == "" {
					t.Fatal("an object without a name")
				}
				if _, err := json.Marshal(view.Resource(made, nil, nil)); err != nil {
					t.Fatal(err)
				}
				var change wire.PutResource
				if decode(data, &change) == nil {
					_ = view.PutResource(made, &change)
				}
			}
		}
		if name, attempt, ok := view.ParseAttemptID(id); ok && view.AttemptID(name, &attempt) != id {
			t.Fatalf("%q is another ID than %q", view.AttemptID(name, &attempt), id)
		}
		if stem := view.Stem(id); stem == "" || len(stem) > 32 {
			t.Fatalf("bad stem %q", stem)
		}
	})
}
