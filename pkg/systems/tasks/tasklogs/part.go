package tasklogs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/part"
)

// directory is the archive's directory below the directory of pods' logs. No pod's directory can have this name.
const directory = ".tasks"

type node struct {
	part.None
	host    part.Host
	archive *Archive

	mu sync.Mutex
	// used holds the pods whose network this process has set up. An entry is nil until the container has ended.
	used map[types.UID]*corev1.PodCondition
}

// Part returns the part for an agent.
func Part(h part.Host) part.Part {
	return &node{
		host: h, archive: New(filepath.Join(h.LogDir, directory), 0, 0), used: map[types.UID]*corev1.PodCondition{},
	}
}

// Owner implements part.Part. It returns the UID of the task that controls a pod.
func (*node) Owner(p *corev1.Pod) string {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil || ref.Kind != "Task" || ref.APIVersion != tasks.GroupVersion.String() {
		return ""
	}
	return string(ref.UID)
}

// ConditionType implements part.Part.
func (*node) ConditionType() corev1.PodConditionType { return tasks.UsageCondition }

// Setup implements part.Part.
func (n *node) Setup(_ context.Context, p *corev1.Pod, _ string) error {
	if n.Owner(p) != "" {
		n.mu.Lock()
		defer n.mu.Unlock()
		if _, known := n.used[p.UID]; !known {
			n.used[p.UID] = nil
		}
	}
	return nil
}

// Observe implements part.Part. When the container has ended, it reads the pod's usage once.
func (n *node) Observe(uid types.UID, _ string, runs bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if had, known := n.used[uid]; runs || !known || had != nil || n.host.Usage == nil {
		return
	}
	memory, cpu, err := n.host.Usage(context.Background(), uid, tasks.ContainerName)
	if err != nil { // the container is created and has not started, or the kernel does not record the usage
		return
	}
	message, err := json.Marshal(tasks.TaskUsage{
		PeakMemoryBytes: int64(min(memory, 1<<62)), CPUMilliseconds: int64(cpu / time.Millisecond),
	})
	if err == nil {
		n.used[uid] = &corev1.PodCondition{
			Type: tasks.UsageCondition, Status: corev1.ConditionTrue, Reason: "ContainerEnded", Message: string(message),
			LastTransitionTime: metav1.Now(),
		}
	}
}

// Condition implements part.Part.
func (n *node) Condition(uid types.UID) *corev1.PodCondition {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.used[uid]
}

// KeepFiles implements part.FileKeeper. It keeps the files in the attempt's output directory.
func (n *node) KeepFiles(logs, _ string, pod types.UID) {
	if _, err := os.Stat(logs); err == nil && n.host.VolumeDir != nil { // else no container has begun
		archiveOutput(n.host.VolumeDir(pod, tasks.OutputVolume), logs)
	}
}

// Keep implements part.Part. It keeps logs until their task is deleted. The task's namespace is the pod's, with which
// the name of the directory of logs begins.
func (n *node) Keep(logs, task string, pod types.UID, name string) error {
	n.mu.Lock()
	delete(n.used, pod)
	n.mu.Unlock()
	namespace, _, _ := strings.Cut(filepath.Base(logs), "_")
	return n.archive.Keep(logs, Task{namespace, task}, string(pod), name)
}

// Routes implements part.Part.
func (n *node) Routes() []part.Route {
	return []part.Route{
		{Pattern: "GET /taskLogs/{task}/{namespace}/{pod}/{uid}", Handler: n.read},
		{Pattern: "GET /taskOutput/{task}/{namespace}/{pod}/{uid}", Handler: n.output},
		{Pattern: "DELETE /taskLogs/{task}/{namespace}", Handler: n.forget},
	}
}

// dir returns the directory in the archive of the attempt that a request names.
func (n *node) dir(r *http.Request) (string, error) {
	task := Task{r.PathValue("namespace"), r.PathValue("task")}
	if uid := r.PathValue("uid"); uid != tasks.AnyPod {
		return n.archive.Dir(task, uid, r.PathValue("pod"))
	}
	return n.archive.DirNamed(task, r.PathValue("pod"))
}

func (n *node) read(w http.ResponseWriter, r *http.Request) {
	container := cmp.Or(r.URL.Query().Get("container"), tasks.ContainerName)
	if len(validation.IsDNS1123Label(container)) > 0 {
		http.Error(w, fmt.Sprintf("%q is not the name of a container", container), http.StatusBadRequest)
		return
	}
	n.host.ServeLog(w, r, part.Log{
		Namespace: r.PathValue("namespace"), Pod: r.PathValue("pod"), UID: types.UID(r.PathValue("uid")),
		Container: container,
		Kept: func() (string, error) {
			dir, err := n.dir(r)
			if err != nil {
				return "", err
			}
			return newest(dir, container)
		},
	})
}

// output responds with the files of an attempt's output directory as a tar archive: the kept ones or, before the volume
// is removed, the present ones. The files move to the pod's directory of logs, and with it to the archive.
func (n *node) output(w http.ResponseWriter, r *http.Request) {
	if n.kept(w, r) || n.present(w, r) || n.kept(w, r) {
		return
	}
	http.Error(w, "the attempt left no files, or they are not kept any more: it had no outputPath, its container did not "+
		"start, or they were removed to free disk space", http.StatusBadRequest)
}

// kept responds with kept files, or with the reason why they are not kept. It returns false if there is neither.
func (n *node) kept(w http.ResponseWriter, r *http.Request) bool {
	var dirs []string
	namespace, pod, id := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("uid")
	if named.MatchString(namespace) && named.MatchString(pod) && uid.MatchString(id) {
		dirs = append(dirs, filepath.Join(n.host.LogDir, namespace+"_"+pod+"_"+id))
	}
	if dir, err := n.dir(r); err == nil {
		dirs = append(dirs, dir)
	}
	for _, dir := range dirs {
		f, err := os.Open(filepath.Join(dir, outputFile))
		if err != nil {
			if f, err = os.Open(filepath.Join(dir, outputError)); err != nil {
				continue
			}
			w.WriteHeader(http.StatusBadRequest)
		}
		defer f.Close()
		_, _ = io.Copy(w, f)
		return true
	}
	return false
}

// present responds with the files that are in a pod's volume now. It returns false if there is no such volume.
func (n *node) present(w http.ResponseWriter, r *http.Request) bool {
	pod := r.PathValue("uid")
	if !uid.MatchString(pod) || n.host.VolumeDir == nil {
		return false
	}
	root, err := os.OpenRoot(n.host.VolumeDir(types.UID(pod), tasks.OutputVolume))
	if err != nil {
		return false
	}
	defer root.Close()
	if err := pack(root, w); err != nil {
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}
	return true
}

func (n *node) forget(w http.ResponseWriter, r *http.Request) {
	if err := n.archive.Forget(Task{r.PathValue("namespace"), r.PathValue("task")}); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}
