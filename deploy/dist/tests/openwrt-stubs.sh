# The functions of OpenWrt that our script in /etc/init.d uses; sourced by openwrt-scripts.sh and
# openwrt-runs.sh under busybox.
#
# Sections are folders, options files in one of their folders, lists, an item a line, in the other:
# config_get sees no list, and config_list_foreach no option.
# shellcheck shell=dash disable=SC3045
config_load() {
	local section each item
	[ -d "$CONFIG" ] || return 1
	for section in "$CONFIG"/*.*; do
		[ -d "$section" ] || continue
		section=${section##*/}
		config_cb "${section%.*}" "$section"
		for each in "$CONFIG/$section/options"/*; do
			[ ! -f "$each" ] || option_cb "${each##*/}" "$(cat "$each")"
		done
		for each in "$CONFIG/$section/lists"/*; do
			[ -f "$each" ] || continue
			while IFS= read -r item; do list_cb "${each##*/}" "$item"; done <"$each"
		done
	done
	config_cb
}
config_foreach() {
	local each
	for each in "$CONFIG"/"$2".*; do
		[ ! -d "$each" ] || "$1" "${each##*/}"
	done
}
config_get() {
	local text=""
	[ ! -f "$CONFIG/$2/options/$3" ] || text=$(cat "$CONFIG/$2/options/$3"; echo .) text=${text%??}
	export -n "$1=${text:-${4:-}}"
}
config_list_foreach() {
	[ -f "$CONFIG/$1/lists/$2" ] || return 0
	local item
	while IFS= read -r item; do "$3" "$item"; done <"$CONFIG/$1/lists/$2"
}
uci() { cat "${CONFIG%/*}/uci/$3" 2>/dev/null; }
procd_close_instance() { :; }
procd_add_reload_trigger() { echo "trigger $*" >>"$LOG"; }
logger() { echo "log $*" >>"$LOG"; }
