package upstream_test

import "strings"

// scenario is a sequence of requests about one subject.
type scenario struct {
	name      string
	exchanges []exchange
}

// manifest is an object that is created before the requests.
type manifest struct{ path, body string }

var prepared = []manifest{
	{
		"/api/v1/namespaces",
		"apiVersion: v1\nkind: Namespace\nmetadata: {name: " + space + ", labels: {" + chosen + "-space: 'yes'}}\n",
	},
	{"/api/v1/namespaces", "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n"},
	{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.harbour.example.com}
spec:
  group: harbour.example.com
  scope: Namespaced
  names: {plural: boats, singular: boat, kind: Boat, listKind: BoatList, shortNames: [bt], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    selectableFields: [{jsonPath: .spec.colour}]
    subresources: {status: {}, scale: {specReplicasPath: .spec.crew, statusReplicasPath: .status.crew}}
    additionalPrinterColumns: [{name: Colour, type: string, jsonPath: .spec.colour}]
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            x-kubernetes-validations: [{rule: "self.colour != 'black'", message: no black boats}]
            properties:
              colour: {type: string, maxLength: 20}
              length: {type: integer, default: 7, minimum: 1}
              crew: {type: integer, default: 1}
              first: {type: string, default: one}
              sails: {type: array, items: {type: object, properties: {area: {type: integer, default: 3}}}}
              kind: {type: string, enum: [sloop, ketch]}
          status: {type: object, properties: {crew: {type: integer}, afloat: {type: boolean, default: true}}}
  - name: v2
    served: true
    storage: false
    deprecated: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              colour: {type: string}
              length: {type: integer, default: 9}
              crew: {type: integer}
              first: {type: string}
              second: {type: string, default: two}
              sails: {type: array, items: {type: object, properties: {area: {type: integer}}}}
              kind: {type: string}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`},
	{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: buoys.harbour.example.com}
spec:
  group: harbour.example.com
  scope: Cluster
  names: {plural: buoys, kind: Buoy}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`},
	{"/apis/rbac.authorization.k8s.io/v1/namespaces/" + space + "/roles", `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [secrets], resourceNames: [one], verbs: [get, update, patch]}
- {apiGroups: [""], resources: [pods/status], verbs: [patch]}
- {apiGroups: [rbac.authorization.k8s.io], resources: [roles, rolebindings], verbs: [create, update, patch, get]}
`},
	{"/apis/rbac.authorization.k8s.io/v1/namespaces/" + space + "/rolebindings", `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
`},
	{
		"/api/v1/namespaces/" + space + "/secrets",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: one}\nstringData: {a: b}\n",
	},
	{
		"/api/v1/namespaces/" + space + "/serviceaccounts", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: robot}\n",
	},
	{"/api/v1/namespaces/" + space + "/pods", runner("runner", "")},
	{"/api/v1/namespaces/" + space + "/pods", runner("placed", ", nodeName: nowhere")},
	{
		"/api/v1/namespaces/" + space + "/services",
		"apiVersion: v1\nkind: Service\nmetadata: {name: lonely}\nspec: {ports: [{name: http, port: 80}, {name: more, " +
			"port: 81}]}\n",
	},
}

func runner(name, more string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name +
		", labels: {app: runner}}\nspec: {containers: [{name: main, image: busybox}]" + more + "}\n"
}

var alice = []string{"Impersonate-User", "alice"}

// probes succeed once the prepared objects are in effect.
var probes = []exchange{
	{"", "GET", "/apis/harbour.example.com/v1/boats", "", nil},
	{"", "GET", "/apis/harbour.example.com/v2/boats", "", nil},
	{"", "GET", "/apis/harbour.example.com/v1/buoys", "", nil},
	{"", "GET", "/api/v1/namespaces/" + space + "/configmaps", "", alice},
}

func scenarios() []scenario {
	return []scenario{
		{"discovery", discoveries()}, {"paths", paths()}, {"versions of a custom resource", versions()},
		{"invalid custom resources", invalidBoats()}, {"definitions", definitions()},
		{"users", users()}, {"reviews", reviews()}, {"pods", podRequests()}, {"scale", scales()},
		{"fields", fieldSelectors()}, {"proxies", proxies()}, {"services", services()},
	}
}

func discoveries() (all []exchange) {
	const v2 = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	for _, path := range []string{
		"/api", "/apis", "/api/", "/apis/", "/api/v1", "/apis/apps", "/apis/apps/", "/apis/apps/v1",
		"/apis/harbour.example.com", "/apis/harbour.example.com/v1", "/apis/harbour.example.com/v2",
		"/apis/nonsense", "/apis/apps/v9", "/api/v2", "/apis/nonsense/v1",
	} {
		for _, accept := range []string{
			"", jsonType, yamlType, protoType, cborType, "text/plain", "*/*", jsonType + v2, protoType + v2, yamlType + v2,
			cborType + v2,
			jsonType + ";g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
			jsonType + ";g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList",
			jsonType + ";g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList," + jsonType + v2 + "," + jsonType,
			protoType + v2 + "," + jsonType, "text/plain," + protoType + v2,
			jsonType + v2 + ";profile=nopeer", "application/json;as=Table;v=v1;g=meta.k8s.io",
			jsonType + ";q=0.5," + protoType + v2 + ";q=0.9", "application/json;as=APIGroupDiscoveryList",
		} {
			all = append(all, exchange{path + " for " + accept, "GET", path, "", []string{"Accept", accept}})
		}
		for _, method := range []string{"HEAD", "POST", "PUT", "DELETE", "OPTIONS"} {
			all = append(all, exchange{method + " " + path, method, path, "", nil})
		}
		all = append(all,
			exchange{path + " with a bad etag", "GET", path, "", []string{"If-None-Match", `"x"`, "Accept", jsonType + v2}},
			exchange{path + " with any etag", "GET", path, "", []string{"If-None-Match", `*`, "Accept", jsonType + v2}})
	}
	return all
}

func paths() (all []exchange) {
	for _, path := range []string{
		"/", "/version", "/version/", "/healthz", "/livez", "/readyz", "/healthz/ping", "/healthz/nonsense",
		"/readyz?verbose", "/nonsense", "/api/v1/nonsense", "/apis/apps/v1/nonsense",
		"/api/v1/namespaces/" + space + "/nonsense", "/api/v1/namespaces/" + space + "/nonsense/x",
		"/api/v1/nodes/nonsense/nonsense", "/apis/apps/v1/namespaces/" + space + "/deployments/x/nonsense",
		"/api/v1/namespaces/" + space + "/nodes", "/apis/harbour.example.com/v1/nonsense",
		"/apis/harbour.example.com/v1/namespaces/" + space + "/buoys", "/api/v1/namespaces//configmaps", "//api/v1/nodes",
		"/api/v1/configmaps/x",
		"/api/v1/watch", "/api/v1/watch/nodes?timeoutSeconds=1", "/api/v1/proxy/nodes/x", "/openid/v1/jwks",
		"/.well-known/openid-configuration", "/swagger.json", "/logs", "/metrics/nonsense", "/debug/pprof/nonsense",
		"/openapi", "/openapi/v3/nonsense",
		"/api/v1/namespaces/" + space + "/status", "/api/v1/namespaces/" + space + "/finalize",
		"/api/v1/componentstatuses/nonsense",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "DELETE", "PATCH", "PUT"} {
			if method != "GET" && strings.Contains(path, "z") {
				continue
			}
			all = append(all, exchange{method + " " + path, method, path, "", nil})
		}
	}
	return all
}

func fieldSelectors() (all []exchange) {
	labels := []string{
		"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.restartPolicy", "spec.schedulerName",
		"spec.serviceAccountName", "spec.hostNetwork", "spec.host", "status.phase", "status.podIP",
		"status.podIPs", "status.hostIP", "status.nominatedNodeName", "spec.unschedulable", "status.replicas",
		"status.successful", "involvedObject.kind", "involvedObject.name", "involvedObject.uid", "involvedObject.fieldPath",
		"regarding.kind", "regarding.name",
		"reason", "reportingComponent", "reportingController", "source", "type", "spec.clusterIP", "spec.type",
		"spec.signerName", "spec.podName", "spec.driver", "spec.pool.name", "spec.group", "spec.ipAddress",
		"spec.parentRef.name", "spec.colour", "spec.length", "status.observedGeneration", "timestamp",
	}
	for _, kind := range []string{
		"/api/v1/pods", "/api/v1/nodes", "/api/v1/namespaces", "/api/v1/services", "/api/v1/secrets", "/api/v1/events",
		"/apis/events.k8s.io/v1/events", "/api/v1/configmaps", "/api/v1/replicationcontrollers", "/api/v1/persistentvolumes",
		"/api/v1/persistentvolumeclaims", "/apis/apps/v1/replicasets", "/apis/apps/v1/statefulsets", "/apis/batch/v1/jobs",
		"/apis/batch/v1/cronjobs", "/apis/certificates.k8s.io/v1/certificatesigningrequests",
		"/apis/certificates.k8s.io/v1/clustertrustbundles",
		"/apis/certificates.k8s.io/v1/podcertificaterequests", "/apis/resource.k8s.io/v1/resourceslices",
		"/apis/resource.k8s.io/v1/resourceclaims", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		"/apis/apiregistration.k8s.io/v1/apiservices",
		"/apis/harbour.example.com/v1/boats", "/apis/harbour.example.com/v2/boats", "/apis/harbour.example.com/v1/buoys",
		"/apis/storage.k8s.io/v1/storageclasses", "/apis/rbac.authorization.k8s.io/v1/clusterroles",
		"/apis/coordination.k8s.io/v1/leases",
		"/apis/networking.k8s.io/v1/ipaddresses", "/apis/networking.k8s.io/v1/servicecidrs",
		"/apis/discovery.k8s.io/v1/endpointslices", "/api/v1/componentstatuses",
	} {
		for _, label := range labels {
			all = append(all, exchange{
				kind + " by " + label, "GET", kind + "?fieldSelector=" + label + "%3Dno-such-value", "", nil,
			})
		}
		all = append(all,
			exchange{
				kind + " by nothing", "GET", kind + "?fieldSelector=metadata.namespace%3D,metadata.name%3Dno-such", "", nil,
			},
			exchange{"watch " + kind, "GET", kind + "?watch=1&timeoutSeconds=1&fieldSelector=nonsense%3Dx", "", nil},
			exchange{"delete " + kind, "DELETE", kind + "?fieldSelector=nonsense%3Dx&dryRun=All", "", nil})
	}
	ns := "/api/v1/namespaces/" + space
	return append(all,
		exchange{
			"address",
			"PATCH",
			ns + "/pods/runner/status",
			`{"status":{"podIP":"10.1.2.3","podIPs":[{"ip":"10.1.2.3"},{"ip":"fd00::1"}]}}`,
			[]string{"Content-Type", strategic},
		},
		exchange{"by address", "GET", ns + "/pods?fieldSelector=status.podIP%3D10.1.2.3", "", nil},
		exchange{"by addresses", "GET", ns + "/pods?fieldSelector=status.podIPs%3D10.1.2.3", "", nil},
		exchange{"by no addresses", "GET", ns + "/pods?fieldSelector=status.podIPs%3D", "", nil},
		exchange{"by the second address", "GET", ns + "/pods?fieldSelector=status.podIPs%3Dfd00::1", "", nil})
}

func proxies() (all []exchange) {
	ns := "/api/v1/namespaces/" + space
	for _, path := range []string{
		ns + "/services/none/proxy", ns + "/services/none/proxy/x", ns + "/services/lonely/proxy/",
		ns + "/services/lonely:nonsense/proxy/", ns + "/services/lonely:http/proxy/", ns + "/services/lonely:99/proxy/",
		ns + "/services/ftp:lonely:http/proxy/", ns + "/services/https:lonely:http/proxy/",
		ns + "/services/a:b:c:d/proxy/", ns + "/pods/none/proxy", ns + "/pods/none/proxy/", ns + "/pods/none:80/proxy/",
		ns + "/pods/none:nonsense/proxy/", ns + "/pods/runner/proxy/", ns + "/pods/runner:80/proxy/",
		"/api/v1/nodes/none/proxy", "/api/v1/nodes/none/proxy/", "/api/v1/nodes/none:10250/proxy/",
		"/api/v1/nodes/http:none:1:2/proxy/",
	} {
		for _, method := range []string{"GET", "POST", "DELETE", "HEAD", "OPTIONS"} {
			all = append(all, exchange{method + " " + path, method, path, "", nil})
		}
	}
	return all
}

func services() (all []exchange) {
	at := "/api/v1/namespaces/" + space + "/services"
	for what, spec := range map[string]string{
		"no ports": `{}`, "no spec": `null`, "headless": `{"clusterIP":"None"}`,
		"a bad address":        `{"clusterIP":"x","ports":[{"port":80}]}`,
		"an address elsewhere": `{"clusterIP":"1.2.3.4","ports":[{"port":80}]}`,
		"a port twice":         `{"ports":[{"port":80,"name":"a"},{"port":80,"name":"b"}]}`,
		"an unnamed port":      `{"ports":[{"port":80},{"port":81,"name":"b"}]}`, "a bad port": `{"ports":[{"port":0}]}`,
		"a large port": `{"ports":[{"port":70000}]}`, "a bad type": `{"type":"Nonsense","ports":[{"port":80}]}`,
		"a node port out of range":   `{"type":"NodePort","ports":[{"port":80,"nodePort":5}]}`,
		"a node port of a cluster's": `{"ports":[{"port":80,"nodePort":30007}]}`,
		"an external name":           `{"type":"ExternalName","externalName":"example.com"}`,
		"no external name":           `{"type":"ExternalName"}`,
		"a balancer":                 `{"type":"LoadBalancer","ports":[{"port":80}]}`,
		"both families":              `{"ipFamilyPolicy":"RequireDualStack","ports":[{"port":80}]}`,
		"the sixth":                  `{"ipFamilies":["IPv6"],"ports":[{"port":80}]}`,
		"preferring both":            `{"ipFamilyPolicy":"PreferDualStack","ports":[{"port":80}]}`,
		"affinity":                   `{"sessionAffinity":"ClientIP","ports":[{"port":80}]}`,
		"bad affinity":               `{"sessionAffinity":"Nonsense","ports":[{"port":80}]}`,
		"a bad policy":               `{"externalTrafficPolicy":"Local","ports":[{"port":80}]}`,
		"sources":                    `{"type":"LoadBalancer","loadBalancerSourceRanges":["x"],"ports":[{"port":80}]}`,
	} {
		body := `{"apiVersion":"v1","kind":"Service","metadata":{"name":"tried"},"spec":` + spec + `}`
		all = append(all, exchange{what + ", dry", "POST", at + "?dryRun=All", body, []string{"Content-Type", jsonType}},
			exchange{what, "POST", at, body, []string{"Content-Type", jsonType}},
			exchange{
				what + ", to a node port",
				"PATCH",
				at + "/tried",
				`{"spec":{"type":"NodePort"}}`,
				[]string{"Content-Type", merge},
			},
			exchange{
				what + ", to none", "PATCH", at + "/tried", `{"spec":{"clusterIP":"None"}}`, []string{"Content-Type", merge},
			},
			exchange{
				what + ", to a name",
				"PATCH",
				at + "/tried",
				`{"spec":{"type":"ExternalName","externalName":"example.com"}}`,
				[]string{"Content-Type", merge},
			},
			exchange{
				what + ", status",
				"PATCH",
				at + "/tried/status",
				`{"status":{"loadBalancer":{"ingress":[{"ip":"x"}]}}}`,
				[]string{"Content-Type", merge},
			},
			exchange{what + ", deleted", "DELETE", at + "/tried", "", nil})
	}
	return all
}
