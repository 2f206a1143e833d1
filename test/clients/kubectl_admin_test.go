package clients

import (
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/test/host"
)

func (v *tour) access() {
	v.is(`created`, "create serviceaccount bob")
	v.is(`created`, "create role reader --verb=get,list --resource=pods,deployments.apps,pods/log")
	v.is(`created`, "create rolebinding reader --role=reader --serviceaccount=tour:bob")
	v.is(`subjects updated`, "set subject rolebinding reader --user=alice")
	v.is(`Role/reader .*alice +tour/bob`, "get rolebinding reader -o wide")
	v.is(`created`, "create clusterrole tour --verb=get --non-resource-url=/foo")
	v.is(`created`, "create clusterrolebinding tour --clusterrole=tour --user=bob --group=g")
	v.is(`^yes$`, "auth can-i list pods --as=system:serviceaccount:tour:bob")
	v.no(`^no$`, "auth can-i delete pods --as=system:serviceaccount:tour:bob")
	v.is(`^pods/log +\[\] +\[\] +\[get list\]`, "auth can-i --list --as=system:serviceaccount:tour:bob")
	v.is(`^yes$`, "auth can-i get /foo --as=bob")
	v.is(`Username +bob\nGroups +\[g system:authenticated\]`, "auth whoami --as=bob --as-group=g")
	v.is(`^ey`, "create token bob --duration=1h --audience=x")
	v.no(`pods "none" not found`, "create token bob --bound-object-kind=Pod --bound-object-name=none")
	role := v.file("role.yaml",
		"{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: reader, namespace: tour}, rules: "+
			"[{apiGroups: [\"\"], resources: [secrets], verbs: [get]}]}")
	v.is(`missing rules added`, "auth reconcile -f "+role)
	v.is(`extra rules removed`, "auth reconcile --remove-extra-permissions -f "+role)

	request := filepath.Join(v.dir, "u.csr")
	host.System(v.T, "openssl", "req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", filepath.Join(v.dir, "u.key"),
		"-subj", "/O=g/CN=zoe", "-out", request)
	raw, err := os.ReadFile(request)
	require.NoError(v, err)
	for _, name := range []string{"zoe", "zoe2"} {
		v.h.Apply("{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {name: " + name +
			"}, spec: {request: " +
			base64.StdEncoding.EncodeToString(raw) + ", signerName: kubernetes.io/kube-apiserver-client, usages: [client " +
			"auth]}}")
	}
	v.is(`approved`, "certificate approve zoe")
	v.is(`met`, "wait csr/zoe --for=jsonpath={.status.certificate} --timeout=30s")
	v.is(`denied`, "certificate deny zoe2")
	v.no(`already Denied`, "certificate approve zoe2")
	v.is(`zoe .* Approved,Issued(.|\n)*zoe2 .* Denied`, "get csr")
}

func (v *tour) nodes() {
	node := v.h.Name
	v.is(`cordoned`, "cordon "+node)
	v.is(`Ready,SchedulingDisabled`, "get nodes")
	v.is(`uncordoned`, "uncordon "+node)
	v.is(`tainted`, "taint nodes "+node+" a=b:NoSchedule")
	v.no(`already has a taint`, "taint nodes "+node+" a=c:NoSchedule")
	v.is(`modified`, "taint nodes "+node+" a=c:NoSchedule --overwrite")
	v.is(`untainted`, "taint nodes "+node+" a-")
	v.no(`cannot delete Pods that declare no controller \(use --force to override\)`, "drain "+node)
	v.is(`evicting pod tour/bg \(server dry run\)`, "drain "+node+" --dry-run=server --force --ignore-daemonsets")
	v.is(`deleted`, "delete pdb pdb")
	v.is(`drained`, "drain "+node+" --force --ignore-daemonsets --delete-emptydir-data --grace-period=1 --timeout=60s")
	v.is(`uncordoned`, "uncordon "+node)
	v.is(`Container Runtime Version: +containerd`, "describe node "+node)
	v.is(`successfully rolled out`, "rollout status deployment/web --timeout=60s")
}

func (v *tour) discovery() {
	v.is(`containerPort\s+<integer> -required-`, "explain pods.spec.containers.ports")
	v.is(`^ +readyReplicas\s+<integer>`, "explain deployment --recursive")
	v.is(`VERSION: +autoscaling/v2`, "explain hpa --api-version=autoscaling/v2 --output=plaintext-openapiv2")
	v.no(`field "nosuch" does not exist`, "explain pods.spec.nosuch")
	v.is(`^deployments +deploy +apps/v1 +true +Deployment`, "api-resources --api-group=apps")
	v.is(`create,delete,deletecollection,get,list,patch,update,watch`,
		"api-resources --namespaced=false --verbs=list,create -o wide --sort-by=name")
	v.is(`^deployments.apps$`, "api-resources --categories=all -o name")
	v.is(`^apps/v1$`, "api-versions")
	v.is(`control plane.* is running at`, "cluster-info")
	dump := filepath.Join(v.dir, "dump")
	v.is(`Cluster info dumped`, "cluster-info dump --output-directory="+dump)
	require.FileExists(v, filepath.Join(dump, "tour", "pods.json"))
	v.is(`__start_kubectl`, "completion bash")
	v.is(`^web$`, "__complete get deployments w")
	v.is(`coracle`, "config get-contexts")
	v.is(`DATA\+OMITTED`, "config view")
	v.is(`Server Version: v1\.`, "version")
	v.no(`unable to find any kubectl plugins`, "plugin list")
}

func (v *tour) proxy() {
	ctx, cancel := context.WithTimeout(v.Context(), host.Patience)
	defer cancel()
	c := v.h.Command(ctx, v.h.Coracle, "ctl", "proxy", "--port=0")
	out, err := c.StdoutPipe()
	require.NoError(v, err)
	require.NoError(v, c.Start())
	defer func() { cancel(); _ = c.Wait() }()
	line := make([]byte, 200)
	n, err := out.Read(line)
	require.NoError(v, err)
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(string(line[:n]))
	require.NotEmpty(v, address, "%s", line[:n])
	client := &http.Client{Transport: &http.Transport{DialContext: v.h.Dial, DisableKeepAlives: true}}
	for path, want := range map[string]string{
		"/api/v1/namespaces/tour/services/web": `Service"`, "/api/v1/namespaces/tour/services/web:80/proxy/": "hello",
		"/api/v1/namespaces/tour/pods/bg/exec": "Forbidden",
	} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
		require.NoError(v, err)
		res, err := client.Do(req)
		require.NoError(v, err)
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		require.NoError(v, err)
		require.Contains(v, string(body), want, path)
	}
}

func (v *tour) delete() {
	v.is(`deleted`, "delete configmap app --wait=false")
	v.is(`^$`, "delete configmap app --ignore-not-found")
	v.is(`deployment.apps "web" deleted`, "delete deployment web --cascade=orphan")
	v.is(`^web-`, "get rs")
	v.is(`deleted`, "delete rs --all --cascade=foreground")
	v.is(`"status":"Success"`, "delete --raw /api/v1/namespaces/tour/configmaps/cm")
	v.is(`created`, "run late --image=busybox:1.36 -- sleep 1000")
	v.is(`pod "late" force deleted`, "delete pod late --grace-period=0 --force")
	v.is(`cronjob.batch "cj" deleted`, "delete all --all")
	v.is(`namespace "tour" deleted`, "delete namespace tour")
}
