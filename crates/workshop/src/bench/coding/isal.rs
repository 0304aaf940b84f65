//! ISA-L's erasure code, called in the shared library of the system if it is there.
//!
//! The library is looked for at run time: nothing of the tunnel needs it, so the binary must not
//! either. All `unsafe` of the bench is here, behind methods that check lengths.
//!
//! Source: `erasure_code.h` and `gf_vect_mul.h` of ISA-L 2.30, whose functions have C's calling
//! convention and touch only what their arguments name.

#![allow(unsafe_code, reason = "calls a library in C")]

use std::ffi::{c_int, c_uchar};
use std::marker::PhantomData;

use libloading::Library;

/// What to install when [`Isal::load`] finds nothing.
pub const PACKAGE: &str = "libisal2";

/// The name that libisal2 gives its library; the major version stands for the interface.
const FILE: &str = "libisal.so.2";
/// Bytes of tables for each coefficient (`ec_init_tables`).
const TABLE_BYTES: usize = 32;
/// Elements of the field.
const FIELD_SIZE: usize = 256;

type GenerateCauchy = unsafe extern "C" fn(*mut c_uchar, c_int, c_int);
type InvertMatrix = unsafe extern "C" fn(*mut c_uchar, *mut c_uchar, c_int) -> c_int;
type InitTables = unsafe extern "C" fn(c_int, c_int, *mut c_uchar, *mut c_uchar);
type EncodeData =
    unsafe extern "C" fn(c_int, c_int, c_int, *mut c_uchar, *mut *mut c_uchar, *mut *mut c_uchar);

/// The functions of the library.
#[derive(Debug)]
pub struct Isal {
    generate_cauchy: GenerateCauchy,
    invert_matrix: InvertMatrix,
    init_tables: InitTables,
    encode_data: EncodeData,
    /// Keeps the functions where they are.
    _library: Library,
}

/// What `ec_init_tables` makes of a matrix.
#[derive(Debug)]
pub struct Tables {
    sources: usize,
    outputs: usize,
    bytes: Vec<u8>,
}

/// The arguments of one call, ready to be made again and again.
#[derive(Debug)]
pub struct Call<'a> {
    isal: &'a Isal,
    tables: &'a Tables,
    length: usize,
    sources: Vec<*mut c_uchar>,
    outputs: Vec<*mut c_uchar>,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl Isal {
    /// Opens the library; none if it is not installed, or lacks a function.
    pub fn load() -> Option<Self> {
        // SAFETY: the library's initialisers only ask the processor what it can do.
        let library = unsafe { Library::new(FILE) }.ok()?;
        // SAFETY: these are the functions' types in the headers of this major version, and
        // `library` lives as long as the pointers do.
        unsafe {
            Some(Self {
                generate_cauchy: *library.get(b"gf_gen_cauchy1_matrix").ok()?,
                invert_matrix: *library.get(b"gf_invert_matrix").ok()?,
                init_tables: *library.get(b"ec_init_tables").ok()?,
                encode_data: *library.get(b"ec_encode_data").ok()?,
                _library: library,
            })
        }
    }

    /// A matrix of which all square parts can be inverted, `[u8; outputs * sources]`.
    pub fn cauchy(&self, outputs: usize, sources: usize) -> Vec<u8> {
        let rows = sources + outputs;
        assert!(rows <= FIELD_SIZE, "the matrix has no more rows than the field elements");
        let mut matrix = vec![0; rows * sources];
        // SAFETY: `matrix` holds the `rows * sources` bytes that are written.
        unsafe { (self.generate_cauchy)(matrix.as_mut_ptr(), int(rows), int(sources)) };
        // The first rows are those of the unit matrix.
        matrix.split_off(sources * sources)
    }

    /// The inverse of a square matrix, `[u8; size * size]`; none if there is none.
    pub fn invert(&self, matrix: &[u8], size: usize) -> Option<Vec<u8>> {
        assert_eq!(matrix.len(), size * size, "a square");
        let (mut matrix, mut inverse) = (matrix.to_vec(), vec![0; size * size]);
        // SAFETY: both hold the `size * size` bytes that are read and written.
        let failed =
            unsafe { (self.invert_matrix)(matrix.as_mut_ptr(), inverse.as_mut_ptr(), int(size)) };
        (failed == 0).then_some(inverse)
    }

    /// The tables of a matrix, `[u8; outputs * sources]`.
    pub fn tables(&self, matrix: &[u8], sources: usize) -> Tables {
        let outputs = matrix.len() / sources;
        assert_eq!(matrix.len(), outputs * sources, "whole rows");
        let (mut matrix, mut bytes) = (matrix.to_vec(), vec![0; TABLE_BYTES * matrix.len()]);
        let (from, to) = (matrix.as_mut_ptr(), bytes.as_mut_ptr());
        // SAFETY: `matrix` holds the coefficients that are read, `bytes` the tables that are
        // written.
        unsafe { (self.init_tables)(int(sources), int(outputs), from, to) };
        Tables { sources, outputs, bytes }
    }

    /// A call that sets `outputs` to the products of a matrix with `sources`, all of one length.
    pub fn call<'a>(
        &'a self,
        tables: &'a Tables,
        sources: &[&'a [u8]],
        outputs: &'a mut [&mut [u8]],
    ) -> Call<'a> {
        let length = sources.first().map_or(0, |source| source.len());
        assert_eq!((sources.len(), outputs.len()), (tables.sources, tables.outputs));
        assert!(sources.iter().all(|source| source.len() == length), "sources are equally long");
        assert!(outputs.iter().all(|output| output.len() == length), "outputs are as long");
        Call {
            isal: self,
            tables,
            length,
            sources: sources.iter().map(|source| source.as_ptr().cast_mut()).collect(),
            outputs: outputs.iter_mut().map(|output| output.as_mut_ptr()).collect(),
            borrowed: PhantomData,
        }
    }
}

impl Call<'_> {
    /// Makes the call.
    pub fn run(&mut self) {
        // SAFETY: the tables were made for so many sources and outputs, each of which has `length`
        // bytes and stays borrowed while `self` lives; tables and sources are only read.
        unsafe {
            (self.isal.encode_data)(
                int(self.length),
                int(self.tables.sources),
                int(self.tables.outputs),
                self.tables.bytes.as_ptr().cast_mut(),
                self.sources.as_mut_ptr(),
                self.outputs.as_mut_ptr(),
            );
        }
    }
}

fn int(number: usize) -> c_int {
    c_int::try_from(number).expect("lengths of the bench are small")
}
