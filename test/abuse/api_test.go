package abuse

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	tenantMaps = "/api/v1/namespaces/tenant/configmaps"
	reviews    = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
)

func (c *cluster) client(t *testing.T) *http.Client {
	t.Helper()
	client, err := rest.HTTPClientFor(c.tenantConfig)
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	return client
}

func (c *cluster) url(path string) string { return c.tenantConfig.Host + path }

// send makes a request as the tenant and returns the status code and the beginning of the response.
func (c *cluster) send(t *testing.T, method, path, contentType string, body io.Reader,
	headers ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.url(path), body)
	require.NoError(t, err)
	req.Header.Set("Content-Type", contentType)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := c.client(t).Do(req)
	if err != nil {
		text := err.Error() // it contains the whole URL
		t.Fatalf("%s %s: ...%s", method, path[:min(len(path), 100)], text[max(0, len(text)-200):])
	}
	defer res.Body.Close()
	answer, err := bounded.All(res.Body, 16<<20)
	require.NoError(t, err)
	return res.StatusCode, string(answer)
}

// refused checks that the response is a 4xx whose Status contains the words.
func refused(t *testing.T, code int, answer, words string) {
	t.Helper()
	require.GreaterOrEqual(t, code, 400, answer)
	require.Less(t, code, 500, answer)
	var status metav1.Status
	require.NoError(t, json.Unmarshal([]byte(answer), &status), answer)
	require.Contains(t, status.Message, words)
	t.Logf("told: %d %s", code, status.Message[:min(len(status.Message), 200)])
}

// A patch of 4,000 copies of a 700 KB value makes an object of gigabytes.
func jsonPatchCopies(t *testing.T, c *cluster) {
	big := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "big"}, Data: map[string]string{"a": strings.Repeat("x", 700<<10)},
	}
	_, err := c.tenant.CoreV1().ConfigMaps(tenantNamespace).Create(t.Context(), big, metav1.CreateOptions{})
	require.NoError(t, err)
	var patch strings.Builder
	patch.WriteByte('[')
	for i := range 4000 {
		if i > 0 {
			patch.WriteByte(',')
		}
		fmt.Fprintf(&patch, `{"op":"copy","from":"/data/a","path":"/data/b%d"}`, i)
	}
	patch.WriteByte(']')
	code, answer := c.send(t, http.MethodPatch, tenantMaps+"/big", string(types.JSONPatchType),
		strings.NewReader(patch.String()))
	refused(t, code, answer, "rejected")
}

// A megabyte of YAML whose aliases expand to gigabytes, for a resource that every account may create.
func yamlAliases(t *testing.T, c *cluster) {
	var body strings.Builder
	body.WriteString("apiVersion: authorization.k8s.io/v1\nkind: SelfSubjectAccessReview\na: &a \"" +
		strings.Repeat("x", 500<<10) + "\"\nz: [")
	body.WriteString(strings.Repeat("*a,", 150<<10))
	body.WriteString("]\n")
	code, answer := c.send(t, http.MethodPost, reviews, "application/yaml", strings.NewReader(body.String()))
	refused(t, code, answer, "")

	nested := "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
	for i := range 12 {
		nested += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1,
			strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 10), ","))
	}
	code, answer = c.send(t, http.MethodPost, reviews, "application/yaml", strings.NewReader(nested))
	refused(t, code, answer, "")
	code, answer = c.send(t, http.MethodPatch, tenantMaps+"/applied?fieldManager=me", string(types.ApplyPatchType),
		strings.NewReader(nested))
	refused(t, code, answer, "")
}

// Three megabytes of opening brackets in each format.
func deepNesting(t *testing.T, c *cluster) {
	deep := strings.Repeat("[", 2900<<10)
	for _, format := range []string{"application/json", "application/yaml"} {
		code, answer := c.send(t, http.MethodPost, reviews, format, strings.NewReader(`{"metadata":{"annotations":`+deep))
		refused(t, code, answer, "")
	}
	for _, patch := range []types.PatchType{
		types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType, types.ApplyPatchType,
	} {
		code, answer := c.send(t, http.MethodPatch, tenantMaps+"/kube-root-ca.crt?fieldManager=me", string(patch),
			strings.NewReader(`{"metadata":`+deep))
		refused(t, code, answer, "")
	}
}

// A dry run of a ConfigMap whose managed fields have 200,000 keys in descending order. Insertion into a sorted list
// took half a minute of processor time. JSON with that many keys is refused earlier, protobuf is not.
func descendingFields(t *testing.T, c *cluster) {
	with := func(keys int) *corev1.ConfigMap {
		var fields strings.Builder
		for i := keys; i > 0; i-- {
			fmt.Fprintf(&fields, `"f:%06d":{},`, i)
		}
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"}}
		m.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: "a", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:data":{` + strings.TrimSuffix(fields.String(), ",") + `}}`)},
		}}
		return m
	}
	const many = "managedFields has too many fields"
	for contentType, keys := range map[string]int{
		"application/json": 49_000, "application/vnd.kubernetes.protobuf": 200_000,
	} {
		config := rest.CopyConfig(c.tenantConfig)
		config.ContentType = contentType
		api, err := kubernetes.NewForConfig(config)
		require.NoError(t, err)
		maps, before := api.CoreV1().ConfigMaps(tenantNamespace), used(t, c.pid)
		_, err = maps.Update(t.Context(), with(keys), metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		require.ErrorContains(t, err, many)
		created := with(keys)
		created.Name = "slow"
		_, err = maps.Create(t.Context(), created, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.ErrorContains(t, err, many)
		require.Less(t, used(t, c.pid)-before, 5*time.Second)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"managedFields": with(49_000).ManagedFields}})
	require.NoError(t, err)
	code, answer := c.send(t, http.MethodPatch, tenantMaps+"/kube-root-ca.crt?dryRun=All", string(types.MergePatchType),
		strings.NewReader(string(patch)))
	refused(t, code, answer, many)
}

// Selectors and continue tokens as long as a request line can be.
func longSelectors(t *testing.T, c *cluster) {
	for name, query := range map[string]string{
		"labels":   "labelSelector=" + url.QueryEscape("a in ("+strings.Repeat("x,", 8<<10)+"x)"),
		"fields":   "fieldSelector=" + url.QueryEscape(strings.Repeat("metadata.name=x,", 2<<10)+"metadata.name=x"),
		"continue": "limit=1&continue=" + strings.Repeat("A", 40<<10),
	} {
		code, answer := c.send(t, http.MethodGet, tenantMaps+"?"+query, "", nil)
		require.Less(t, code, 500, "%s: %s", name, answer[:min(len(answer), 300)])
	}
}

// dialTLS connects to the API without Go's HTTP client.
func (c *cluster) dialTLS(t *testing.T) *tls.Conn {
	t.Helper()
	u, err := url.Parse(c.tenantConfig.Host)
	require.NoError(t, err)
	raw, err := c.Dial(t.Context(), "tcp", u.Host)
	require.NoError(t, err)
	_ = raw.(*net.TCPConn).SetReadBuffer(4 << 10)
	conn := tls.Client(raw, &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{"http/1.1"},
	}) //nolint:gosec // an attacker does not verify the server
	require.NoError(t, conn.HandshakeContext(t.Context()))
	return conn
}

// Hundreds of clients request lists of megabytes and do not read the responses.
func neverRead(t *testing.T, c *cluster) {
	maps := c.tenant.CoreV1().ConfigMaps(tenantNamespace)
	for i := range 8 {
		_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("large-%d", i)},
			Data: map[string]string{"a": strings.Repeat("y", 900<<10)}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	var conns []net.Conn
	defer func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	request := "GET " + tenantMaps + " HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\nAuthorization: Bearer " +
		c.tenantConfig.BearerToken + "\r\n\r\n"
	for range 450 {
		conn := c.dialTLS(t)
		conns = append(conns, conn)
		_, err := io.WriteString(conn, request)
		require.NoError(t, err)
	}
	// The server still serves the bystander, and the tenant once it reads.
	for range 20 {
		_, err := c.bystander.CoreV1().ConfigMaps("bystander").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		_, err = c.admin.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
	}
	require.NoError(t,
		maps.DeleteCollection(t.Context(), metav1.DeleteOptions{},
			metav1.ListOptions{FieldSelector: "metadata.name!=kube-root-ca.crt"}))
}

// Hundreds of clients announce a body of megabytes, send a little of it, and wait.
func endlessBodies(t *testing.T, c *cluster) {
	var conns []net.Conn
	defer func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	for range 300 {
		conn := c.dialTLS(t)
		conns = append(conns, conn)
		_, err := io.WriteString(conn,
			"POST "+tenantMaps+
				" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 3000000\r\nAuthorization: Bearer "+
				c.tenantConfig.BearerToken+"\r\n\r\n{")
		require.NoError(t, err)
	}
	for i := range 20 {
		name := fmt.Sprintf("written-%d", i)
		_, err := c.bystander.CoreV1().ConfigMaps("bystander").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
}

// Thousands of connections without a request.
func idleConnections(t *testing.T, c *cluster) {
	u, err := url.Parse(c.tenantConfig.Host)
	require.NoError(t, err)
	var conns []net.Conn
	defer func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	refusals := 0
	for range 3000 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		conn, err := c.Dial(ctx, "tcp", u.Host)
		cancel()
		if err != nil {
			refusals++
			break
		}
		conns = append(conns, conn)
	}
	t.Logf("%d connections made, %d refused", len(conns), refusals)
}

// One account sends as many list requests as it can.
func stormOfLists(t *testing.T, c *cluster) {
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
	defer stop()
	var wg sync.WaitGroup
	for range 300 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for ctx.Err() == nil {
				_, err := c.tenant.CoreV1().ConfigMaps(tenantNamespace).List(ctx, metav1.ListOptions{})
				if err != nil && ctx.Err() == nil && !apierrors.IsTooManyRequests(err) {
					t.Errorf("the answer is not a 429: %v", err)
					return
				}
			}
		}()
	}
	wg.Wait()
	node, err := c.admin.CoreV1().Nodes().Get(t.Context(), c.Name, metav1.GetOptions{})
	require.NoError(t, err)
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			require.Equal(t, corev1.ConditionTrue, condition.Status, "the node's heartbeats got through")
		}
	}
}

// A write method below /watch is not a watch, and must not reach the object.
func watchesAsWrites(t *testing.T, c *cluster) {
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		code, answer := c.send(t, method, "/api/v1/watch/namespaces/tenant/configmaps/kube-root-ca.crt", "application/json",
			strings.NewReader("{}"))
		require.Contains(t, []int{http.StatusMethodNotAllowed, http.StatusForbidden}, code, "%s: %s", method, answer)
	}
}

// Extras without a user are refused, not ignored.
func impersonatedExtras(t *testing.T, c *cluster) {
	code, answer := c.send(t, http.MethodGet, tenantMaps, "", nil, "Impersonate-Extra-Scopes", "all")
	require.GreaterOrEqual(t, code, 400, answer)
}

// Services and endpoints that point at the machine itself are not proxied.
func proxiesToTheMachine(t *testing.T, c *cluster) {
	ctx := t.Context()
	for i, address := range []string{"127.0.0.1", "169.254.169.254"} {
		name := fmt.Sprintf("trap-%d", i)
		_, err := c.admin.CoreV1().Services(tenantNamespace).Create(ctx,
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "a", Port: 6443}}}}, metav1.CreateOptions{})
		require.NoError(t, err)
		port, portName := int32(6443), "a"
		_, err = c.admin.DiscoveryV1().EndpointSlices(tenantNamespace).Create(ctx, &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
			Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Logf("told: %v", err) // the API refuses such addresses
			continue
		}
		began := time.Now()
		_, err = c.admin.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces/tenant/services/https:" + name +
			":a/proxy/version").DoRaw(ctx)
		require.Error(t, err, address)
		require.Less(t, time.Since(began), 10*time.Second)
		t.Logf("told: %v", err)
	}
	for _, target := range []string{"127.0.0.1", "169.254.169.254"} {
		raw, err := c.admin.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + target + ":6443/proxy/version").DoRaw(ctx)
		require.Error(t, err, "%s", raw)
	}
}

// Unknown verbs, paths and resources must not create time series.
func metricsMadeByClients(t *testing.T, c *cluster) {
	series := func() int {
		raw, err := c.admin.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
		require.NoError(t, err)
		return bytes.Count(raw, []byte("\n"))
	}
	before := series()
	for i := range 300 {
		c.send(t, fmt.Sprintf("VERB%d", i), fmt.Sprintf("/apis/g%d.example.com/v1/r%d", i, i), "", nil)
		c.send(t, http.MethodGet, fmt.Sprintf("/api/v1/namespaces/n%d/things%d/x/sub%d", i, i, i), "", nil, "User-Agent",
			fmt.Sprintf("agent-%d", i))
	}
	require.Less(t, series(), before+150)
}
