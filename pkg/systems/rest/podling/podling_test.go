package podling

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// facade sends prepared answers by method and path, and records bodies.
type facade struct {
	answers map[string]any
	bodies  map[string]string
	auth    string
}

func (f *facade) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.auth = r.Header.Get("Authorization")
	var body bytes.Buffer
	_, _ = body.ReadFrom(r.Body)
	key := r.Method + " " + r.URL.RequestURI()
	f.bodies[key] = body.String()
	v, ok := f.answers[key]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		v = wire.Error{Error: "task not found"}
	}
	if text, ok := v.(string); ok {
		_, _ = w.Write([]byte(text))
		return
	}
	_ = json.NewEncoder(w).Encode(v)
}

func podling(t *testing.T, f *facade, args ...string) (string, error) {
	t.Helper()
	s := httptest.NewServer(f)
	defer s.Close()
	t.Setenv("HOME", t.TempDir())
	cmd := Command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{"--master", s.URL + "/", "--token", "secret"}, args...))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// TestTheOutputIsPodlings checks the output of each command.
func TestTheOutputIsPodlings(t *testing.T) {
	created := time.Now().Add(-90 * time.Second)
	zero := 0
	f := &facade{bodies: map[string]string{}, answers: map[string]any{
		"POST /api/v1/tasks": wire.Task{TaskID: "web-1", Name: "web", Image: "nginx", Status: "scheduled", NodeID: "n1"},
		"GET /api/v1/tasks": []wire.Task{
			{
				TaskID: "web-1", Name: "web", Image: "nginx", Status: "running", NodeID: "n1", CreatedAt: created,
				HealthStatus: "unknown",
			},
			{TaskID: "a", Name: "a", Image: "i", Status: "pending", CreatedAt: created},
		},
		"GET /api/v1/tasks/web-1": wire.Task{
			TaskID:    "web-1",
			Name:      "web",
			Image:     "nginx",
			Status:    "failed",
			NodeID:    "n1",
			Error:     "container exited with code 3",
			CreatedAt: time.Unix(0, 0).UTC(),
			Env:       map[string]string{"B": "2", "A": "1"},
		},
		"GET /api/v1/tasks/a":                          wire.Task{TaskID: "a", Status: "pending"},
		"GET /api/v1/tasks/web-1/logs?tail=5":          wire.TaskLogs{Logs: "hello\n"},
		"GET /api/v1/tasks/web-1/logs/stream?tail=100": "data: one\n\ndata: two\n\n",
		"GET /api/v1/nodes": []wire.Node{
			{
				NodeID: "n1", Hostname: "localhost", Port: 8081, Status: "online", RunningTasks: 2, LastHeartbeat: created,
				Resources: &wire.NodeResources{Capacity: wire.Resources{CPU: 2500, Memory: 2 << 30}},
			},
		},
		"POST /api/v1/prune?all=true": wire.PruneResult{PodsRemoved: 1, TasksRemoved: 2},
		"POST /api/v1/pods": wire.Pod{
			PodID:      "p-1",
			Name:       "p",
			Namespace:  "default",
			Status:     "pending",
			Containers: []wire.Container{{}, {}},
		},
		"GET /api/v1/pods": []wire.Pod{
			{
				PodID: "p-1", Name: "a-name-that-is-much-too-long", Namespace: "default", Status: "running",
				Containers: []wire.Container{{Name: "a"}, {Name: "b"}},
			},
		},
		"GET /api/v1/pods/p-1": wire.Pod{
			PodID:      "p-1",
			Name:       "p",
			Status:     "succeeded",
			Containers: []wire.Container{{Name: "a", Image: "i", Status: "terminated", ExitCode: &zero}},
		},
		"GET /api/v1/pods/p-1/logs?container=a&tail=100": wire.PodLogs{Logs: map[string]string{"a": "hi"}},
		"DELETE /api/v1/pods/p-1":                        wire.Message{},
		"POST /api/v1/services": wire.Service{
			ServiceID: "s",
			Name:      "s",
			Namespace: "default",
			Type:      "ClusterIP",
			ClusterIP: "10.43.0.9",
			Ports:     []wire.ServicePort{{}},
		},
		"GET /api/v1/services?namespace=x": []wire.Service{
			{Name: "s", Namespace: "x", Type: "ClusterIP", Ports: []wire.ServicePort{{Name: "http", Port: 80}, {Port: 90}}},
		},
		"GET /api/v1/services/s": wire.Service{
			ServiceID: "s",
			Name:      "s",
			Ports:     []wire.ServicePort{{Port: 80, TargetPort: 8080, Protocol: "TCP"}},
		},
		"GET /api/v1/services/s/endpoints": wire.Endpoints{
			Subsets: []wire.EndpointSubset{{Addresses: []wire.EndpointAddress{{IP: "10.42.0.3", PodID: "p-1"}}}},
		},
		"DELETE /api/v1/services/s": wire.Message{},
	}}
	for _, c := range []struct {
		args []string
		want string
	}{
		{
			[]string{"run", "web", "-i", "nginx", "-e", "A=1", "-p", "8080:80"},
			"Task created successfully:\n  ID:     web-1\n  Name:   web\n  Image:  nginx\n  Status: scheduled\n  Node:   n1\n",
		},
		{
			[]string{"ps"},
			"ID      NAME   IMAGE   STATUS    HEALTH   NODE   CREATED\nweb-1   web    nginx   running   -        n1     1m\na " +
				"      a      i       pending   -        -      1m\n",
		},
		{
			[]string{"ps", "-t", "web-1"},
			"Task Details:\n  ID:            web-1\n  Name:          web\n  Image:         nginx\n  Status:        failed\n  " +
				"Node:          n1\n  Container:     \n  Created:       1970-01-01T00:00:00Z\n  Error:         container exited " +
				"with code 3\n\nEnvironment Variables:\n  A=1\n  B=2\n",
		},
		{
			[]string{"nodes", "-v"},
			"ID   HOSTNAME    PORT   STATUS   CPU   MEMORY   TASKS   LAST HEARTBEAT\nn1   localhost   8081   online   2.5   " +
				"2.0Gi    2       1m ago\n\nTotal nodes: 1\n",
		},
		{[]string{"logs", "web-1", "--tail", "5"}, "hello\n"},
		{[]string{"logs", "web-1", "-f"}, "one\ntwo\n"},
		{
			[]string{"prune", "--all"},
			"Pruned resources from database:\n  Pods:     1\n  Tasks:    2\n  Nodes:    0\n  Services: 0\n",
		},
		{
			[]string{"pod", "create", "p", "-c", "a:nginx:1.0:K=V,L=W", "-c", "b:busybox", "-p", "a:8080:80"},
			"Pod created successfully:\n  ID:        p-1\n  Name:      p\n  Namespace: default\n  Status:    pending\n  " +
				"Containers: 2\n",
		},
		{
			[]string{"pod", "list"},
			"POD ID                    NAME                 NAMESPACE    STATUS     " +
				"CONTAINERS\n--------------------------------------------------------------------------------\np-1               " +
				"        a-name-that-is-mu... default      running    a,b\n",
		},
		{
			[]string{"pod", "get", "p-1"},
			"Pod ID:        p-1\nName:          p\nStatus:        succeeded\nCreated:       0001-01-01 00:00:00\n\nContainers " +
				"(1):\n\n  [1] a\n      Image:       i\n      Status:      terminated\n      Exit Code:   0\n",
		},
		{[]string{"pod", "logs", "p-1", "-c", "a"}, "==> Container: a <==\nhi\n"},
		{[]string{"pod", "delete", "p-1"}, "Pod p-1 deleted successfully\n"},
		{
			[]string{"service", "create", "s", "--selector", "app=a,tier=b", "--port", "http:80:8080", "--port", "90"},
			"Service created successfully:\n  ID:         s\n  Name:       s\n  Namespace:  default\n  Type:       " +
				"ClusterIP\n  ClusterIP:  10.43.0.9\n  DNS:        s.default.svc\n  Ports:      1\n",
		},
		{
			[]string{"service", "get", "s"},
			"Service: s\n  ID:         s\n  Namespace:  \n  Type:       \n  Created:    0001-01-01 00:00:00\n\nPorts:\n  - 80 " +
				"-> 8080/TCP\n\nEndpoints:\n  Ready:\n    - 10.42.0.3 (pod: p-1)\n",
		},
		{[]string{"service", "delete", "s"}, "Service s deleted successfully\n"},
	} {
		out, err := podling(t, f, c.args...)
		require.NoError(t, err, c.args)
		require.Equal(t, c.want, out, c.args)
		require.Equal(t, "Bearer secret", f.auth)
	}
	require.JSONEq(t,
		`{"name":"web","image":"nginx","env":{"A":"1"},"ports":[{"containerPort":80,"hostPort":8080,"protocol":"TCP"}],"resources":{"limits":{},"requests":{}}}`, f.bodies["POST /api/v1/tasks"])
	var pod wire.CreatePod
	require.NoError(t, json.Unmarshal([]byte(f.bodies["POST /api/v1/pods"]), &pod))
	require.Equal(t, "nginx:1.0", pod.Containers[0].Image)
	require.Equal(t, map[string]string{"K": "V", "L": "W"}, pod.Containers[0].Env)
	require.Equal(t, 8080, pod.Containers[0].Ports[0].HostPort)
	var service wire.CreateService
	require.NoError(t, json.Unmarshal([]byte(f.bodies["POST /api/v1/services"]), &service))
	require.Equal(t,
		[]wire.ServicePort{
			{Name: "http", Port: 80, TargetPort: 8080, Protocol: "TCP"}, {Port: 90, TargetPort: 90, Protocol: "TCP"},
		}, service.Ports)
	require.Equal(t, map[string]string{"app": "a", "tier": "b"}, service.Selector)

	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"run", "web"}, "image"},
		{[]string{"run", "web", "-i", "x", "-e", "A"}, "key=value"},
		{[]string{"run", "web", "-i", "x", "-p", "80"}, "hostPort:containerPort"},
		{[]string{"ps", "-t", "none"}, "failed to get task: task not found (status 404)"},
		{[]string{"logs", "a"}, "has not been scheduled"},
		{[]string{"logs"}, "usage: podling logs"},
		{[]string{"pod", "create", "p"}, "at least one container"},
		{[]string{"pod", "create", "p", "-c", "a"}, "name:image"},
		{[]string{"pod", "create", "p", "-c", "a:i", "-c", "b:i", "-p", "1:2"}, "needs the name"},
		{[]string{"service", "create", "s", "--port", "a:b:c"}, "[name:]port[:targetPort]"},
	} {
		_, err := podling(t, f, c.args...)
		require.ErrorContains(t, err, c.says, c.args)
	}
}

// TestWhereTheFacadeIs checks that flags override the environment, which overrides the file.
func TestWhereTheFacadeIs(t *testing.T) {
	home := t.TempDir()
	env := map[string]string{"HOME": home}
	get := func(k string) string { return env[k] }
	o, err := options{}.merge(get)
	require.NoError(t, err)
	require.Equal(t, defaultMaster, o.Master)
	require.NoError(t,
		os.WriteFile(filepath.Join(home, ".podling.yaml"), []byte("master: http://file\ntoken: a\n"), 0o600))
	o, err = options{}.merge(get)
	require.NoError(t, err)
	require.Equal(t, options{Master: "http://file", Token: "a"}, o)
	env["PODLING_MASTER_URL"] = "http://env"
	o, err = options{}.merge(get)
	require.NoError(t, err)
	require.Equal(t, "http://env", o.Master)
	o, err = options{Master: "http://flag"}.merge(get)
	require.NoError(t, err)
	require.Equal(t, "http://flag", o.Master)
	_, err = options{config: home + "/none"}.merge(get)
	require.Error(t, err)
	_, err = newClient(options{Master: "localhost:8080"})
	require.ErrorContains(t, err, "not a URL")
}
