package tasklogs

import (
	"net/http"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/part"
)

// directory is the archive's directory below the directory of pods' logs. No pod's directory can have this name.
const directory = ".tasks"

type node struct {
	part.None
	host    part.Host
	archive *Archive
}

// Part returns the part for an agent.
func Part(h part.Host) part.Part {
	return &node{host: h, archive: New(filepath.Join(h.LogDir, directory), 0, 0)}
}

// Owner implements part.Part. It returns the UID of the task that controls a pod.
func (*node) Owner(p *corev1.Pod) string {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil || ref.Kind != "Task" || ref.APIVersion != tasks.GroupVersion.String() {
		return ""
	}
	return string(ref.UID)
}

// Keep implements part.Part. It keeps logs until their task is deleted.
func (n *node) Keep(logs, task string, uid types.UID, name string) error {
	return n.archive.Keep(logs, task, string(uid), name)
}

// Routes implements part.Part.
func (n *node) Routes() []part.Route {
	return []part.Route{
		{Pattern: "GET /taskLogs/{task}/{namespace}/{pod}/{uid}", Handler: n.read},
		{Pattern: "DELETE /taskLogs/{task}", Handler: n.forget},
	}
}

func (n *node) read(w http.ResponseWriter, r *http.Request) {
	task, name, uid := r.PathValue("task"), r.PathValue("pod"), r.PathValue("uid")
	n.host.ServeLog(w, r, part.Log{
		Namespace: r.PathValue("namespace"), Pod: name, UID: types.UID(uid), Container: tasks.ContainerName,
		Kept: func() (string, error) {
			if uid == tasks.AnyPod {
				return n.archive.FindNamed(task, name, tasks.ContainerName)
			}
			return n.archive.Find(task, uid, name, tasks.ContainerName)
		},
	})
}

func (n *node) forget(w http.ResponseWriter, r *http.Request) {
	if err := n.archive.Forget(r.PathValue("task")); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}
