package clients

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

type tour struct {
	*testing.T
	h *host.Host
	// dir is the folder of the files that commands read.
	dir string
}

// TestKubectl runs kubectl's commands, and each flag that makes the server do something different.
func TestKubectl(t *testing.T) {
	v := &tour{T: t, h: host.New(t), dir: t.TempDir()}
	v.h.Start()
	v.is(`namespace/tour created`, "create namespace tour")
	v.is(`modified`, "config set-context --current --namespace=tour")
	for _, part := range []struct {
		name string
		run  func(*tour)
	}{
		{"create", (*tour).create}, {"rollouts", (*tour).rollouts}, {"pods", (*tour).pods}, {"debug", (*tour).debug},
		{"apply", (*tour).apply},
		{"edit and patch", (*tour).edit}, {"get", (*tour).get}, {"wait", (*tour).wait}, {"access", (*tour).access},
		{"nodes", (*tour).nodes},
		{"discovery", (*tour).discovery}, {"proxy", (*tour).proxy}, {"delete", (*tour).delete},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(&tour{T: t, h: v.h, dir: v.dir}) }) {
			return
		}
	}
}

// command runs kubectl with the words of a line, and with more as further arguments.
func (v *tour) command(line string, more []string) (string, error) {
	return v.h.Try(append(append([]string{"ctl"}, strings.Fields(line)...), more...)...)
}

// is runs a command that must succeed with output that matches a pattern.
func (v *tour) is(pattern, line string, more ...string) string {
	v.Helper()
	out, err := v.command(line, more)
	require.NoError(v, err, "kubectl %s %q\n%s", line, more, out)
	require.Regexp(v, `(?m)`+pattern, out, "kubectl %s %q", line, more)
	return out
}

// no runs a command that must fail with output that matches a pattern.
func (v *tour) no(pattern, line string, more ...string) {
	v.Helper()
	out, err := v.command(line, more)
	require.Error(v, err, "kubectl %s %q\n%s", line, more, out)
	require.Regexp(v, `(?m)`+pattern, out, "kubectl %s %q", line, more)
}

// until reads the lines that a command prints until one matches the pattern, and ends the command.
func (v *tour) until(pattern, line string) {
	v.Helper()
	ctx, cancel := context.WithTimeout(v.Context(), host.Patience)
	defer cancel()
	c := v.h.Command(ctx, v.h.Coracle, append([]string{"ctl"}, strings.Fields(line)...)...)
	out, err := c.StdoutPipe()
	require.NoError(v, err)
	require.NoError(v, c.Start())
	wanted, found, seen := regexp.MustCompile(pattern), false, []string(nil)
	for lines := bufio.NewScanner(out); !found && lines.Scan(); {
		seen = append(seen, lines.Text())
		found = wanted.MatchString(lines.Text())
	}
	cancel()
	_ = c.Wait()
	require.True(v, found, "kubectl %s: no line is %q in\n%s", line, pattern, strings.Join(seen, "\n"))
}

func (v *tour) file(name, text string) string {
	v.Helper()
	path := filepath.Join(v.dir, name)
	require.NoError(v, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(v, os.WriteFile(path, []byte(text), 0o644))
	return path
}

const webManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: hello, image: coracle/hello, imagePullPolicy: IfNotPresent, ports: [{containerPort: 8080}]}]
`

func (v *tour) create() {
	v.is(`deployment.apps/web created`, "create --save-config -f "+v.file("web.yaml", webManifest))
	v.is(`configmap/cm created`, "create configmap cm --from-literal=x=y --from-file="+v.file("f.txt", "hello\n"))
	v.is(`secret/s created`, "create secret generic s --from-literal=a=b")
	v.is(`secret/reg created`,
		"create secret docker-registry reg --docker-username=u --docker-password=p --docker-server=r.example.com")
	v.is(`quota/q created`, "create quota q --hard=pods=40")
	v.is(`met`, "wait quota/q --for=jsonpath={.status.hard.pods}=40 --timeout=60s")
	v.is(`pods +\d+ +40`, "describe quota q")
	v.is(`created`, "create pdb pdb --selector=app=web --min-available=1")
	v.is(`created`, "create priorityclass tour --value=5")
	v.is(`job.batch/j created`, "create job j --image=busybox:1.36 -- echo out")
	v.is(`met`, "wait job/j --for=condition=Complete --timeout=60s")
	v.is(`^out$`, "logs job/j")
	v.is(`created`, "create cronjob cj --image=busybox:1.36 --schedule=@yearly -- date")
	v.is(`job.batch/j2 created`, "create job j2 --from=cronjob/cj")
	v.is(`created`, "create ingress ing --rule=a.example.com/x*=web:80")
	v.is(`created`, "create service clusterip ci --tcp=80:80")
	v.is(`created`, "create service externalname en --external-name=x.example.com")
	v.is(`created`, "create service nodeport np --tcp=80:8080")
	v.is(`created`, "create service loadbalancer lb --tcp=8099:8080")
	v.is(`service/web exposed`, "expose deployment web --port=80 --target-port=8080")
	v.is(`uid:`, "expose deployment web --port=80 --name=dry --dry-run=server -o yaml")
	v.no(`couldn't get version/kind; json parse error: unexpected end of JSON input \(<empty>\)`,
		"create --raw /api/v1/namespaces/tour/configmaps -f "+v.file("empty", ""))
}

func (v *tour) rollouts() {
	v.is(`successfully rolled out`, "rollout status deployment/web --timeout=60s")
	v.is(`annotated`, "annotate deployment/web kubernetes.io/change-cause=first")
	v.is(`env updated`, "set env deployment/web A=B")
	v.is(`^A=B$`, "set env deployment/web --list")
	v.is(`successfully rolled out`, "rollout status deployment/web --timeout=60s") // a paused Deployment makes no revision
	v.is(`paused`, "rollout pause deployment/web")
	v.is(`resource requirements updated`, "set resources deployment/web --limits=memory=64Mi --requests=cpu=1m")
	v.is(`resumed`, "rollout resume deployment/web")
	v.is(`successfully rolled out`, "rollout status deployment/web --timeout=60s")
	v.is(`^1 +first(.|\n)*^3 `, "rollout history deployment/web")
	v.is(`A:\s+B`, "rollout history deployment/web --revision=2")
	v.is(`rolled back`, "rollout undo deployment/web --to-revision=1")
	v.no(`unable to find specified revision 99 in history`, "rollout undo deployment/web --to-revision=99")
	v.is(`restarted`, "rollout restart deployment/web")
	v.is(`successfully rolled out`, "rollout status deployment/web --timeout=60s")
	v.is(`scaled`, "scale deployment/web --replicas=3 --current-replicas=2")
	v.no(`Expected replicas to be 9, was 3`, "scale deployment/web --replicas=1 --current-replicas=9")
	v.is(`autoscaled`, "autoscale deployment/web --min=1 --max=4 --cpu=50%")
	v.is(`Deployment/web`, "get hpa web")
	v.is(`deleted`, "delete hpa web")
	v.is(`^NAME +DESIRED +AVAILABLE +AGE\nweb +3 `, "get deployment web --subresource=scale")
	v.is(`image updated`, "set image deployment/web hello=coracle/hello:new --dry-run=server")
	v.is(`selector updated`, "set selector service/ci app=web")
	v.is(`serviceaccount updated`, "set serviceaccount deployment/web default")
}

func (v *tour) pods() {
	out := v.h.Pipe("typed\n", "ctl", "run", "once", "--rm", "-i", "--quiet", "--image=busybox:1.36", "--restart=Never",
		"--", "cat")
	require.Contains(v, out, "typed")
	v.is(`service/bg created(.|\n)*pod/bg created|pod/bg created`,
		"run bg --image=busybox:1.36 --env=A=B --labels=x=y --port=80 --expose -- sleep 1000")
	v.is(`met`, "wait pod/bg --for=condition=Ready --timeout=60s")
	v.is(`^A=B$`, "exec bg -- env")
	v.no(`container nope is not valid for pod bg out of: bg`, "exec bg -c nope -- ls")
	v.no(`"nosuch": executable file not found in \$PATH`, "exec bg -- nosuch")
	v.no(`pods "nope" not found`, "attach nope")
	v.is(``, "cp "+v.file("copied/sub/x", "x\n")+" bg:/tmp/x")
	v.is(``, "cp "+filepath.Join(v.dir, "copied")+" bg:/tmp")
	v.is(`^x$`, "exec bg -- cat /tmp/copied/sub/x")
	v.is(``, "cp bg:/tmp/copied/sub/x "+filepath.Join(v.dir, "back"))
	back, err := os.ReadFile(filepath.Join(v.dir, "back"))
	require.NoError(v, err)
	require.Equal(v, "x\n", string(back))
	v.is(`serves on :8080`, "logs deployment/web --all-containers --prefix --tail=2")
	v.is(`^\d{4}-\S+Z .* serves on`, "logs -l app=web --tail=1 --timestamps --since=1h")
	v.no(`previous terminated container "bg" in pod "bg" not found`, "logs bg --previous")
	v.until(`Started +Pod/bg`, "events --for pod/bg --watch")
	v.is(`^`+v.h.Name+` +\d+m `, "top node")
	v.is(`IP: +10\.`, "describe pod bg")

	script, err := exec.LookPath("script") // a terminal
	require.NoError(v, err)
	ctx, cancel := context.WithTimeout(v.Context(), host.Patience)
	defer cancel()
	c := v.h.Command(ctx, script, "-qec",
		"stty rows 40 cols 120; "+v.h.Coracle+" ctl exec -it bg -- sh -c 'tty; stty size; exit 4'", "/dev/null")
	text, err := c.CombinedOutput()
	require.Error(v, err)
	require.Equal(v, 4, c.ProcessState.ExitCode(), "%s", text)
	require.Contains(v, string(text), "/dev/pts/0")
	require.Contains(v, string(text), "40 120")
}

func (v *tour) debug() {
	out := v.h.Pipe("ps\nexit\n", "ctl", "debug", "bg", "-i", "--quiet", "--image=busybox:1.36", "--target=bg", "--", "sh")
	require.Regexp(v, `(?m)^ *1 .*sleep 1000$`, out, "the processes of the container")
	v.no(`targetContainerName: Not found`, "debug bg --image=busybox:1.36 --target=typo --attach=false -- true")
	v.is(``,
		"debug bg --copy-to=bg-copy --share-processes --attach=false --container=bg --set-image=*=busybox:1.36 -- sleep 1000")
	v.is(`met`, "wait pod/bg-copy --for=condition=Ready --timeout=60s")
	v.is(`true`, "get pod bg-copy -o jsonpath={.spec.shareProcessNamespace}")
	out = v.h.Pipe("ls /host\nexit\n", "ctl", "debug", "node/"+v.h.Name, "-i", "--quiet", "--image=busybox:1.36", "--",
		"sh")
	require.Regexp(v, `(?m)^proc$`, out)
}

const appManifest = `
apiVersion: v1
kind: ConfigMap
metadata: {name: app, labels: {app: a}}
data: {k: VALUE}
---
apiVersion: v1
kind: Service
metadata: {name: app, labels: {app: a}}
spec: {ports: [{port: 80}], selector: {app: a}}
`

func (v *tour) apply() {
	app := v.file("app.yaml", strings.Replace(appManifest, "VALUE", "v", 1))
	v.is(`configmap/app created\nservice/app created`, "apply -f "+app)
	v.file("app.yaml", strings.Replace(appManifest, "VALUE", "w", 1))
	v.no(`^-  k: v\n\+  k: w$`, "diff -f "+app)
	v.is(`configmap/app configured \(server dry run\)\nservice/app unchanged`, "apply --dry-run=server -f "+app)
	v.is(`configmap/app configured\nservice/app unchanged`, "apply -f "+app)
	v.is(``, "diff -f "+app)
	v.is(`k: w`, "apply view-last-applied configmap/app")
	v.is(`configured|unchanged`, "apply set-last-applied -f "+app)
	v.is(`configmap/app serverside-applied`, "apply --server-side -f "+app)
	v.file("app.yaml", strings.Replace(appManifest, "VALUE", "z", 1))
	v.no(`conflicts? with "kubectl"`, "apply --server-side --field-manager=other -f "+app)
	v.is(`serverside-applied`, "apply --server-side --field-manager=other --force-conflicts -f "+app)
	v.is(`configmap/app replaced`, "replace -f "+app)
	v.is(`configmap "app" deleted(.|\n)*configmap/app replaced`, "replace --force -f "+app)
	v.no(`configmaps "app" already exists`, "create -f "+app)
	kustomization := filepath.Dir(v.file("k/kustomization.yaml", "resources: [x.yaml]\nnamePrefix: k-\n"))
	v.file("k/x.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: x, labels: {set: k}}}")
	v.is(`name: k-x`, "kustomize "+kustomization)
	v.is(`configmap/k-x created`, "apply -k "+kustomization)
	v.file("k/kustomization.yaml", "resources: [x.yaml]\nnamePrefix: n-\n")
	v.is(`configmap/n-x created(.|\n)*configmap/k-x pruned`,
		"apply -k "+kustomization+" --prune -l set=k --prune-allowlist=core/v1/ConfigMap")
	v.is(`configmap "n-x" deleted`, "delete -k "+kustomization)
}

func (v *tour) edit() {
	editor := v.file("editor", "#!/bin/sh\nsed -i 's/k: z/k: edited/' \"$1\"\n")
	require.NoError(v, os.Chmod(editor, 0o755))
	ctx, cancel := context.WithTimeout(v.Context(), host.Patience)
	defer cancel()
	c := v.h.Command(ctx, v.h.Coracle, "ctl", "edit", "configmap/app")
	c.Env = append(c.Env, "KUBE_EDITOR="+editor)
	out, err := c.CombinedOutput()
	require.NoError(v, err, "%s", out)
	v.is(`^edited$`, "get configmap app -o", "jsonpath={.data.k}{\"\\n\"}")

	v.is(`patched`, `patch configmap app -p {"data":{"x":"y"}}`)
	v.is(`patched`, `patch configmap app --type=merge -p {"data":{"x":null}}`)
	v.is(`patched`, `patch configmap app --type=json -p [{"op":"add","path":"/data/j","value":"1"}]`)
	v.no(`the server rejected our request`,
		`patch configmap app --type=json -p [{"op":"test","path":"/data/k","value":"nope"}]`)
	v.is(`scale.autoscaling/web patched`,
		`patch deployment web --subresource=scale --type=merge -p {"spec":{"replicas":2}}`)
	v.is(`labeled`, "label configmap app a=b")
	v.no(`'a' already has a value \(b\), and --overwrite is false`, "label configmap app a=c")
	v.is(`labeled`, "label configmap app a=c --overwrite")
	v.is(`unlabeled`, "label configmap app a-")
	v.is(`labeled \(server dry run\)`, "label configmap --all t=1 --dry-run=server")
	v.no(`metadata.labels: Invalid value: "bad key"`, "label configmap app", "bad key=1")
	v.is(`annotated`, "annotate configmap app n=1")
	v.is(`^n=1$`, "annotate configmap app --list")
}

func (v *tour) get() {
	v.is(`^bg +1/1 +Running`, "get pods --field-selector=status.phase=Running")
	v.no(`field label not supported: spec.nosuch`, "get pods --field-selector=spec.nosuch=1")
	v.is(`^NAME(.|\n)*bg`, "get pods --sort-by=.metadata.creationTimestamp --chunk-size=1")
	v.is(`^bg +Running$`, "get pods --no-headers -o custom-columns=N:.metadata.name,P:.status.phase")
	v.is(`"bg"`, "get pods -o jsonpath-as-json={.items[*].metadata.name}")
	v.is(`bg `, "get pods -o", "go-template={{range .items}}{{.metadata.name}} {{end}}")
	v.is(`^pod/bg$`, "get pods -o name")
	v.is(`^pod/bg .*10\.\S+ +`+v.h.Name+` .* x=y$`, "get pods -o wide --show-labels --show-kind")
	v.is(`name: "bg"`, "get pods -o kyaml")
	v.is(`^service/web `, "get all")
	v.is(`^node/`+v.h.Name, "get pods,services,nodes")
	v.is(`"gitVersion"`, "get --raw /version")
	v.is(`readyz check passed`, "get --raw /readyz?verbose")
	v.is(`^ok`, "get --raw /livez/ping")
	v.no(`doesn't have a resource type "nosuch"`, "get nosuch")
	v.no(`pods "nosuch" not found`, "get pod nosuch")
	v.is(`^$`, "get pod nosuch --ignore-not-found")
	v.is(`^$`, "get --raw /api/v1/namespaces/tour/configmaps?watch=1&timeoutSeconds=1&resourceVersion=99999999999")
	v.is(`"BOOKMARK"`,
		"get --raw /api/v1/namespaces/tour/configmaps?watch=1&timeoutSeconds=1&allowWatchBookmarks=true&"+
			"sendInitialEvents=true&resourceVersionMatch=NotOlderThan")

	v.until(`^ADDED +bg `, "get pods --watch --output-watch-events")
}

func (v *tour) wait() {
	v.is(`met`, "wait --for=create configmap/app --timeout=5s")
	v.is(`met`, "wait --for=jsonpath={.data.k}=edited configmap/app --timeout=5s")
	v.is(`met`, "wait --for=jsonpath={.data.k} configmap/app --timeout=5s")
	v.is(`met`, "wait --for=condition=Ready pods -l app=web --timeout=60s")
	v.no(`timed out waiting for the condition on configmaps/app`, "wait --for=delete configmap/app --timeout=1s")
}
